#include "redeclare.h"

#include <functional>
#include <string_view>

#include "blockexport/error.h"

// The few messages of onnx.proto3 (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto3) on the way to a dimension:
// ModelProto.graph 7, GraphProto.input 11 and output 12, ValueInfoProto.name 1 and type 2, TypeProto.tensor_type 1,
// TypeProto.Tensor.shape 2, TensorShapeProto.dim 1, Dimension.dim_value 1 and dim_param 2. Encoding: https://protobuf.dev/programming-guides/encoding

namespace blockexport {
namespace {

struct Damaged {};

enum Wire : std::uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

std::uint64_t read_varint(std::string_view data, std::size_t& at) {
  std::uint64_t value = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    if (at >= data.size()) throw Damaged();
    const auto byte = static_cast<unsigned char>(data[at++]);
    value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
    if ((byte & 0x80) == 0) return value;
  }
  throw Damaged();
}

void write_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

/// A message with the content of some of its fields replaced. `change(number, index, content)` sees every field of kind
/// bytes, with how many of its number came before; it writes the new content and returns true, or returns false.
using Change = std::function<bool(std::uint64_t, std::size_t, std::string_view, std::string&)>;

std::string changed(std::string_view message, const Change& change) {
  std::string out, content;
  std::size_t seen[16] = {};
  for (std::size_t at = 0; at < message.size();) {
    const std::size_t start = at;
    const std::uint64_t tag = read_varint(message, at), number = tag >> 3;
    std::size_t length = 0;
    switch (tag & 7) {
      case kVarint: read_varint(message, at); break;
      case kFixed64: length = 8; break;
      case kFixed32: length = 4; break;
      case kBytes: length = read_varint(message, at); break;
      default: throw Damaged();
    }
    if (length > message.size() - at) throw Damaged();
    const std::string_view given = message.substr(at, length);
    at += length;
    const std::size_t index = number < 16 ? seen[number]++ : 0;
    content.clear();
    if ((tag & 7) == kBytes && change(number, index, given, content)) {
      write_varint(out, tag);
      write_varint(out, content.size());
      out += content;
    } else {
      out += message.substr(start, at - start);
    }
  }
  return out;
}

/// Goes down one field number, into its only message.
Change inside(std::uint64_t wanted, const Change& change) {
  return [wanted, change](std::uint64_t number, std::size_t, std::string_view given, std::string& content) {
    if (number != wanted) return false;
    content = changed(given, change);
    return true;
  };
}

bool is_cache(std::string_view value_info) {
  bool found = false;
  changed(value_info, [&](std::uint64_t number, std::size_t, std::string_view name, std::string&) {
    found = found || (number == 1 && (name.rfind("past_key_values.", 0) == 0 || name.rfind("present.", 0) == 0));
    return false;
  });
  return found;
}

std::string with_slots(const std::string& model, const std::string& dimension, const std::string& name) {
  const Change in_shape = [&](std::uint64_t number, std::size_t index, std::string_view, std::string& content) {
    if (number != 1 || index != 2) return false;
    content = dimension;
    return true;
  };
  const Change in_value = inside(2, inside(1, inside(2, in_shape)));
  const Change in_graph = [&](std::uint64_t number, std::size_t, std::string_view given, std::string& content) {
    if ((number != 11 && number != 12) || !is_cache(given)) return false;
    content = changed(given, in_value);
    return true;
  };
  try {
    return changed(model, inside(7, in_graph));
  } catch (const Damaged&) {
    throw Error(name + " is not a readable ONNX file: copy the whole bundle again");
  }
}

}  // namespace

std::string with_max_sequence_length(const std::string& model, std::int64_t max_sequence_length, const std::string& name) {
  std::string dimension = "\x08";  // dim_value, a varint
  write_varint(dimension, static_cast<std::uint64_t>(max_sequence_length));
  return with_slots(model, dimension, name);
}

std::string with_open_slots(const std::string& model, const std::string& name) {
  return with_slots(model, "\x12\x0b" "cache_slots", name);  // dim_param, of 11 bytes
}

}  // namespace blockexport
