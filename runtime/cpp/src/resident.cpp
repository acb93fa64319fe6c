#include "resident.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

#ifdef __linux__
#include <sys/mman.h>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#endif

namespace blockexport {

void release_mapped_files(const std::filesystem::path& folder) {
#if defined(__linux__) && defined(MADV_PAGEOUT)
  std::error_code none;
  const std::string prefix = std::filesystem::weakly_canonical(folder, none).string() + "/";
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    // "start-end permissions offset device inode      path"
    const std::size_t path = line.find('/');
    if (path == std::string::npos || line.compare(path, prefix.size(), prefix) != 0) continue;
    std::istringstream range(line);
    std::uintptr_t start = 0, end = 0;
    char dash = 0;
    range >> std::hex >> start >> dash >> end;
    // A page that was written to would be swapped and not lost, so this is safe whatever the mapping is for.
    if (range) madvise(reinterpret_cast<void*>(start), end - start, MADV_PAGEOUT);
  }
#else
  (void)folder;
#endif
}

void release_free_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace blockexport
