#include "formats/onnx/wire_scan.h"

#include <algorithm>
#include <optional>

#include "ir/error.h"

namespace quern::onnx_format {
namespace {

// The messages of onnx.proto on the way to a tensor.
enum class Message : uint8_t { Opaque, Model, Graph, Node, Attribute, Function, Sparse, Tensor, Skip };

// What the field `number` of `message` holds; Opaque is copied as it is, Skip left out.
Message field_message(Message message, uint32_t number) {
  struct Row {
    Message in;
    uint32_t number;
    Message is;
  };
  static constexpr Row kRows[] = {
      {Message::Model, 7, Message::Graph},       {Message::Model, 25, Message::Function},
      {Message::Model, 20, Message::Skip},  // training_info
      {Message::Graph, 1, Message::Node},        {Message::Graph, 5, Message::Tensor},
      {Message::Graph, 15, Message::Sparse},     {Message::Node, 5, Message::Attribute},
      {Message::Node, 6, Message::Skip},  // doc_string: exporters put stack traces there
      {Message::Attribute, 5, Message::Tensor},  {Message::Attribute, 6, Message::Graph},
      {Message::Attribute, 10, Message::Tensor}, {Message::Attribute, 11, Message::Graph},
      {Message::Attribute, 22, Message::Sparse}, {Message::Attribute, 23, Message::Sparse},
      {Message::Function, 7, Message::Node},     {Message::Function, 11, Message::Attribute},
      {Message::Sparse, 1, Message::Tensor},     {Message::Sparse, 2, Message::Tensor}};
  for (const Row& row : kRows) {
    if (row.in == message && row.number == number) return row.is;
  }
  return Message::Opaque;
}

constexpr uint32_t kRawData = 9;
// As protobuf's own default, which parses what comes out of here.
constexpr int kMaxDepth = 100;

enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void append_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

class Scanner {
 public:
  Scanner(std::span<const std::byte> file, size_t threshold) : file_(file), threshold_(threshold) {}

  SlimModel scan() {
    scan_message(Message::Model, 0, file_.size(), 0, slim_.bytes);
    return std::move(slim_);
  }

 private:
  [[noreturn]] void fail(size_t at, const char* what) const {
    throw_error(ErrorCode::Corrupt, "not a well-formed ONNX model: ", what, " at byte ", at,
                "; the file may be truncated, damaged or of another format");
  }

  uint64_t read_varint(size_t& at, size_t end) const {
    uint64_t value = 0;
    const size_t begin = at;
    for (int shift = 0; shift < 70; shift += 7) {
      if (at >= end) fail(begin, "a number is cut off");
      const auto byte = static_cast<uint64_t>(file_[at++]);
      value |= (byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    fail(begin, "a number is too long");
  }

  // Moves `at` over the value of a field; for kBytes, `at` is left at the first of `length` bytes.
  size_t value_length(uint32_t wire_type, size_t& at, size_t end) const {
    const size_t begin = at;
    switch (wire_type) {
      case kVarint: {
        read_varint(at, end);
        const size_t length = at - begin;
        at = begin;
        return length;
      }
      case kFixed64:
        return fixed_length(8, at, end);
      case kFixed32:
        return fixed_length(4, at, end);
      case kBytes: {
        const uint64_t length = read_varint(at, end);
        if (length > end - at) fail(begin, "a field is longer than what contains it");
        return length;
      }
      default:
        fail(begin, "a field of an unknown kind");
    }
  }

  size_t fixed_length(size_t length, size_t at, size_t end) const {
    if (length > end - at) fail(at, "a number is cut off");
    return length;
  }

  void copy(size_t begin, size_t end, std::string& out) const {
    out.append(reinterpret_cast<const char*>(file_.data()) + begin, end - begin);
  }

  void scan_message(Message message, size_t at, size_t end, int depth, std::string& out) {
    if (depth > kMaxDepth) fail(at, "graphs are nested too deeply");
    std::optional<std::pair<size_t, size_t>> raw_data;  // protobuf lets the last of several win
    while (at < end) {
      const size_t field_begin = at;
      const uint64_t tag = read_varint(at, end);
      if (tag > UINT32_MAX || tag >> 3 == 0) fail(field_begin, "a field without a number");
      const auto number = static_cast<uint32_t>(tag >> 3);
      const auto wire_type = static_cast<uint32_t>(tag & 7);
      const size_t length = value_length(wire_type, at, end);
      const Message inner = wire_type == kBytes ? field_message(message, number) : Message::Opaque;
      if (message == Message::Tensor && number == kPayloadField) {
        // Ours alone; one in the file must not pass for it.
      } else if (message == Message::Tensor && number == kRawData && wire_type == kBytes) {
        raw_data = {at, length};
      } else if (inner == Message::Opaque) {
        copy(field_begin, at + length, out);
      } else if (inner != Message::Skip) {
        std::string nested;
        scan_message(inner, at, at + length, depth + 1, nested);
        append_varint(out, tag);
        append_varint(out, nested.size());
        out += nested;
      }
      at += length;
    }
    if (raw_data) emit_raw_data(raw_data->first, raw_data->second, out);
  }

  void emit_raw_data(size_t at, size_t length, std::string& out) {
    if (length > threshold_) {
      append_varint(out, uint64_t{kPayloadField} << 3 | kVarint);
      append_varint(out, slim_.payloads.size());
      slim_.payloads.push_back(file_.subspan(at, length));
      return;
    }
    append_varint(out, kRawData << 3 | kBytes);
    append_varint(out, length);
    copy(at, at + length, out);
  }

  std::span<const std::byte> file_;
  size_t threshold_;
  SlimModel slim_;
};

}  // namespace

SlimModel slim_down(std::span<const std::byte> file, size_t threshold) {
  return Scanner(file, threshold).scan();
}

}  // namespace quern::onnx_format
