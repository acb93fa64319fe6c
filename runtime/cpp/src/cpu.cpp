#include "cpu.h"

#include <fstream>
#include <set>
#include <sstream>

namespace blockexport {

std::vector<std::string> missing_instructions(const std::vector<std::string>& needed) {
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::set<std::string> present;
  for (std::string line; present.empty() && std::getline(cpuinfo, line);) {
    if (line.rfind("flags", 0) != 0 && line.rfind("Features", 0) != 0) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    for (std::string word; words >> word;) present.insert(word);
  }
  std::vector<std::string> missing;
  for (const std::string& name : needed) {
    if (!present.empty() && present.count(name) == 0) missing.push_back(name);
  }
  return missing;
}

std::string machine() {
#if defined(__x86_64__) || defined(_M_X64)
  return "x86_64";
#elif defined(__aarch64__) || defined(_M_ARM64)
  return "aarch64";
#else
  return "unknown";
#endif
}

}  // namespace blockexport
