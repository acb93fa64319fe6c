#include "resident.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#endif

namespace blockexport {
namespace {

#ifdef __linux__
constexpr int kCollapse = 25;  // MADV_COLLAPSE, of Linux 6.1

// Each mapping of this process: its ends, its permissions, and the file or the name that it shows, if any.
using Visit = std::function<void(std::uintptr_t, std::uintptr_t, const std::string&, const std::string&)>;
void each_mapping(const Visit& visit) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    // "start-end permissions offset device inode      path"
    std::istringstream range(line);
    std::uintptr_t start = 0, end = 0;
    char dash = 0;
    std::string permissions, offset, device, inode, path;
    range >> std::hex >> start >> dash >> end >> permissions >> offset >> device >> inode;
    if (!range) continue;
    std::getline(range >> std::ws, path);
    visit(start, end, permissions, path);
  }
}
#endif

}  // namespace

void release_mapped_files(const std::filesystem::path& folder) {
#if defined(__linux__) && defined(MADV_PAGEOUT)
  std::error_code none;
  const std::string prefix = std::filesystem::weakly_canonical(folder, none).string() + "/";
  each_mapping([&](std::uintptr_t start, std::uintptr_t end, const std::string&, const std::string& path) {
    // A page that was written to would be swapped and not lost, so this is safe whatever the mapping is for.
    if (path.compare(0, prefix.size(), prefix) == 0) madvise(reinterpret_cast<void*>(start), end - start, MADV_PAGEOUT);
  });
#else
  (void)folder;
#endif
}

void release_free_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

Ranges own_memory() {
  Ranges found;
#ifdef __linux__
  each_mapping([&](std::uintptr_t start, std::uintptr_t end, const std::string& permissions, const std::string& path) {
    if (permissions == "rw-p" && (path.empty() || path == "[heap]")) found.emplace_back(start, end);
  });
#endif
  return found;
}

void move_into_huge_pages(const Ranges& before, double seconds) {
#ifdef __linux__
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::duration<double>(seconds);
  std::uintptr_t size = 2 << 20;
  std::ifstream("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size") >> size;
  if (size == 0) return;
  std::vector<unsigned char> there(size / static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE)));
  const auto move = [&](std::uintptr_t start, std::uintptr_t end) {
    for (std::uintptr_t at = (start + size - 1) / size * size; at + size <= end && Clock::now() < deadline; at += size) {
      auto* const page = reinterpret_cast<void*>(at);
      // A huge page takes its whole size: where memory was given back, it would be taken again.
      if (mincore(page, size, there.data()) != 0) continue;
      const auto held = std::count_if(there.begin(), there.end(), [](unsigned char one) { return (one & 1) != 0; });
      if (static_cast<std::size_t>(held) * 4 >= there.size() * 3) madvise(page, size, kCollapse);
    }
  };
  for (auto [start, end] : own_memory()) {
    for (const auto& [low, high] : before) {
      if (high <= start || end <= low) continue;
      move(start, low);
      start = high;
    }
    move(start, end);
  }
#else
  (void)before, (void)seconds;
#endif
}

}  // namespace blockexport
