#pragma once

#include <string>
#include <vector>

namespace blockexport {

/// Those of `needed` (names of /proc/cpuinfo) that this processor lacks; empty where the system does not say.
std::vector<std::string> missing_instructions(const std::vector<std::string>& needed);

/// The processor family this program was compiled for, as Python's platform.machine() names it.
std::string machine();

}  // namespace blockexport
