#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif

#include <sstream>

#include "backends.h"
#include "blockexport/error.h"

namespace blockexport {
namespace {

std::string shown(const std::vector<std::int64_t>& shape) {
  std::string out = "[";
  for (const std::int64_t size : shape) {
    out += (out.size() > 1 ? ", " : "") + (size < 0 ? std::string("any") : std::to_string(size));
  }
  return out + "]";
}

std::vector<std::int64_t> sizes(const Port& port) {
  std::vector<std::int64_t> out;
  for (const auto& axis : port.shape) {
    out.push_back(std::holds_alternative<std::int64_t>(axis) ? std::get<std::int64_t>(axis) : -1);
  }
  return out;
}

}  // namespace

void check_ports(const std::vector<Port>& expected, const std::vector<DeclaredPort>& declared, const std::string& kind,
                 const std::string& artifact) {
  if (expected.size() != declared.size()) {
    throw Error(artifact + " has " + std::to_string(declared.size()) + " " + kind + "s and the manifest lists " +
                std::to_string(expected.size()) + ": export the bundle again");
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const Port& want = expected[i];
    const DeclaredPort& have = declared[i];
    const std::string where = artifact + ": " + kind + " " + std::to_string(i);
    if (want.name != have.name) {
      throw Error(where + " is \"" + have.name + "\" and the manifest says \"" + want.name + "\": the order is part of "
                  "the interface, export the bundle again");
    }
    if (name_of(want.dtype) != have.dtype) {
      throw Error(where + " (" + want.name + ") is of type " + have.dtype + " and the manifest says " +
                  name_of(want.dtype) + ": export the bundle again");
    }
    if (sizes(want) != have.shape) {
      throw Error(where + " (" + want.name + ") has the shape " + shown(have.shape) + " and the manifest says " +
                  shown(sizes(want)) + ": export the bundle again");
    }
  }
}

bool is_cache(const Port& port) {
  return port.name.rfind("past_key_values.", 0) == 0 || port.name.rfind("present.", 0) == 0;
}

void check_memory(const Manifest& manifest, std::int64_t batch_size) {
#ifdef _SC_PHYS_PAGES
  // In floating point, where no product overflows.
  const double bytes = 2.0 * static_cast<double>(manifest.num_hidden_layers) * static_cast<double>(batch_size) *
                       static_cast<double>(manifest.num_key_value_heads) *
                       static_cast<double>(manifest.max_sequence_length) * static_cast<double>(manifest.head_dim) *
                       static_cast<double>(size_of(manifest.dtype));
  const double memory = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (memory > 0 && bytes > memory) {
    std::ostringstream out;
    out.precision(3);
    out << "a cache of " << batch_size << " rows of " << manifest.max_sequence_length << " slots takes " << bytes / 0x1p30
        << " GiB, and this machine has " << memory / 0x1p30 << " GiB: take fewer rows, or a smaller max_sequence_length";
    throw Error(out.str());
  }
#else
  (void)manifest, (void)batch_size;
#endif
}

std::int64_t cache_elements(const Manifest& manifest, std::int64_t batch_size) {
  return batch_size * manifest.num_key_value_heads * manifest.max_sequence_length * manifest.head_dim;
}

}  // namespace blockexport
