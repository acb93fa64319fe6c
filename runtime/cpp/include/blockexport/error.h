#pragma once

#include <stdexcept>

namespace blockexport {

/// A failure a user can act on. The message names the value, the limit and the remedy.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace blockexport
