#pragma once

#include <cstdint>
#include <string>

namespace blockexport {

/// An ONNX file's content with `max_sequence_length` declared as the slots (axis 2) of every cache input and output, and
/// everything else byte for byte as it was. Nothing in a bundle's graph depends on that number.
/// `name` is the file, for messages. Throws Error when the content is not that of an ONNX file.
std::string with_max_sequence_length(const std::string& model, std::int64_t max_sequence_length, const std::string& name);

/// The same with any number of slots declared.
std::string with_open_slots(const std::string& model, const std::string& name);

}  // namespace blockexport
