#include "formats/npy/npy.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>

#include "formats/file/atomic_file.h"
#include "formats/file/mapped_file.h"
#include "formats/file/mapped_tensor.h"
#include "formats/npy/header.h"
#include "ir/error.h"

namespace quern::npy {
namespace {

static_assert(std::endian::native == std::endian::little, "files are read and written in place");

struct ElementType {
  char kind;     // NumPy's: b bool, i, u, f, S bytes, U text, V void
  int64_t size;  // bytes of one element
  bool swap;     // big-endian
  DType dtype;   // String for S and U
};

std::optional<DType> numeric_dtype(char kind, int64_t size) {
  struct Row {
    char kind;
    int64_t size;
    DType dtype;
  };
  static constexpr Row kRows[] = {{'b', 1, DType::Bool}, {'i', 1, DType::I8},  {'i', 2, DType::I16},
                                  {'i', 4, DType::I32},  {'i', 8, DType::I64}, {'u', 1, DType::U8},
                                  {'u', 2, DType::U16},  {'u', 4, DType::U32}, {'u', 8, DType::U64},
                                  {'f', 2, DType::F16},  {'f', 4, DType::F32}, {'f', 8, DType::F64},
                                  {'V', 2, DType::BF16}};
  for (const Row& row : kRows) {
    if (row.kind == kind && row.size == size) return row.dtype;
  }
  return std::nullopt;
}

[[noreturn]] void unsupported(const std::string& descr) {
  throw_error(ErrorCode::Unsupported, "arrays of type '", descr,
              "' are not supported; bool, integers, float16 to float64 and text are");
}

ElementType parse_descr(const std::string& descr) {
  if (descr.size() < 3 || std::string_view("<>|=").find(descr[0]) == std::string_view::npos)
    unsupported(descr);
  int64_t size = 0;
  for (const char c : descr.substr(2)) {
    if (c < '0' || c > '9' || size > (int64_t{1} << 40)) unsupported(descr);
    size = size * 10 + (c - '0');
  }
  const char kind = descr[1];
  const bool big_endian = descr[0] == '>';
  if (kind == 'S' || kind == 'U') {
    // NumPy itself never writes text of width 0, and it would let no bytes claim any number of elements.
    if (size == 0) unsupported(descr);
    return {kind, kind == 'U' ? size * 4 : size, big_endian, DType::String};
  }
  const std::optional<DType> dtype = numeric_dtype(kind, size);
  if (!dtype) unsupported(descr);
  return {kind, size, big_endian && size > 1, *dtype};
}

void append_utf8(std::string& text, uint32_t code) {
  if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
    throw_error(ErrorCode::Corrupt, "text holds ", code, ", which is not a Unicode character");
  }
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
  } else if (code < 0x10000) {
    text += {static_cast<char>(0xE0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 0x3F)),
             static_cast<char>(0x80 | (code & 0x3F))};
  } else {
    text += {static_cast<char>(0xF0 | code >> 18), static_cast<char>(0x80 | (code >> 12 & 0x3F)),
             static_cast<char>(0x80 | (code >> 6 & 0x3F)), static_cast<char>(0x80 | (code & 0x3F))};
  }
}

// One fixed-width element, whose unused end is filled with zeros.
std::string decode_text(const std::byte* data, const ElementType& type) {
  if (type.kind == 'S') {
    std::string text(reinterpret_cast<const char*>(data), static_cast<size_t>(type.size));
    text.resize(text.find_last_not_of('\0') + 1);
    return text;
  }
  const auto code_at = [&](int64_t i) {
    uint32_t code = 0;
    std::memcpy(&code, data + i * 4, 4);
    return type.swap ? __builtin_bswap32(code) : code;
  };
  int64_t length = type.size / 4;
  while (length > 0 && code_at(length - 1) == 0) --length;
  std::string text;
  for (int64_t i = 0; i < length; ++i) append_utf8(text, code_at(i));
  return text;
}

// For each element in row-major order, calls visit(index of the element in the file).
template <class Visit>
void for_each_in_row_major(const Header& header, int64_t count, Visit&& visit) {
  if (!header.fortran_order) {
    for (int64_t i = 0; i < count; ++i) visit(i);
    return;
  }
  const size_t rank = header.shape.size();
  std::array<int64_t, kMaxRank> strides = {1};
  for (size_t axis = 1; axis < rank; ++axis) strides[axis] = strides[axis - 1] * header.shape[axis - 1];
  std::array<int64_t, kMaxRank> index = {};
  int64_t position = 0;
  for (int64_t i = 0; i < count; ++i) {
    visit(position);
    for (size_t axis = rank; axis-- > 0;) {
      position += strides[axis];
      if (++index[axis] < header.shape[axis]) break;
      position -= strides[axis] * header.shape[axis];
      index[axis] = 0;
    }
  }
}

Tensor rearranged(const Header& header, const ElementType& type, std::span<const std::byte> bytes) {
  Tensor tensor = Tensor::zeros(type.dtype, header.shape);
  std::byte* out = tensor.mutable_bytes();
  const auto width = static_cast<size_t>(type.size);
  for_each_in_row_major(header, tensor.size(), [&](int64_t i) {
    const std::byte* in = bytes.data() + i * type.size;
    if (type.swap) {
      std::reverse_copy(in, in + width, out);
    } else {
      std::memcpy(out, in, width);
    }
    out += width;
  });
  return tensor;
}

Tensor parse_elements(const Header& header, std::span<const std::byte> bytes,
                      std::shared_ptr<const void> owner) {
  const ElementType type = parse_descr(header.descr);
  const int64_t count = element_count(header.shape);
  int64_t wanted = 0;
  if (__builtin_mul_overflow(count, type.size, &wanted) || static_cast<uint64_t>(wanted) > bytes.size()) {
    throw_error(ErrorCode::Corrupt, "shape ", to_string(header.shape), " of '", header.descr,
                "' takes more than the ", bytes.size(),
                " bytes that follow the header; the file may be truncated");
  }
  bytes = bytes.first(static_cast<size_t>(wanted));
  if (type.dtype == DType::String) {
    std::vector<std::string> texts;
    texts.reserve(static_cast<size_t>(count));
    for_each_in_row_major(
        header, count, [&](int64_t i) { texts.push_back(decode_text(bytes.data() + i * type.size, type)); });
    return Tensor::from_strings(header.shape, std::move(texts));
  }
  const bool one_axis =
      std::count_if(header.shape.begin(), header.shape.end(), [](int64_t d) { return d != 1; }) <= 1;
  if (!type.swap && (!header.fortran_order || one_axis)) {
    return tensor_from_file_bytes(type.dtype, header.shape, std::move(owner), bytes);
  }
  if (type.dtype == DType::Bool) check_bools(bytes);
  return rearranged(header, type, bytes);
}

std::string make_header(const std::string& descr, const Shape& shape) {
  std::string text = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': (";
  for (const int64_t dim : shape) text += std::to_string(dim) + ", ";
  if (shape.size() > 1) text.resize(text.size() - 2);
  if (shape.size() == 1) text.pop_back();
  text += "), }";
  // NumPy pads to 64 bytes, so that the elements of a mapped file are aligned.
  const size_t start = text.size() + 11 <= 65535 + 10 ? 10 : 12;
  text.append((64 - (start + text.size() + 1) % 64) % 64, ' ');
  text += '\n';
  std::string header("\x93NUMPY", 6);
  header += start == 10 ? '\x01' : '\x02';
  header += '\0';
  for (size_t i = 0; i < start - 8; ++i) header += static_cast<char>(text.size() >> (8 * i) & 0xFF);
  return header + text;
}

// NumPy's type codes, for dtypes that it has.
std::string descr_of(DType dtype) {
  switch (dtype) {
    case DType::Bool:
      return "|b1";
    case DType::I8:
      return "|i1";
    case DType::U8:
      return "|u1";
    case DType::I16:
      return "<i2";
    case DType::U16:
      return "<u2";
    case DType::I32:
      return "<i4";
    case DType::U32:
      return "<u4";
    case DType::I64:
      return "<i8";
    case DType::U64:
      return "<u8";
    case DType::F16:
      return "<f2";
    case DType::F32:
      return "<f4";
    case DType::F64:
      return "<f8";
    default:
      throw_error(ErrorCode::Internal, "no NumPy type for ", to_string(dtype));
  }
}

Tensor with_dtype(const Tensor& tensor, DType dtype) {
  auto owner = std::make_shared<const Tensor>(tensor);
  const std::byte* bytes = owner->bytes();
  return Tensor::view(dtype, tensor.shape(), std::move(owner), bytes, tensor.byte_size());
}

// The tensor in a dtype that NumPy has; see write().
Tensor for_numpy(const Tensor& tensor) {
  switch (tensor.dtype()) {
    case DType::BF16:
      return with_dtype(tensor, DType::U16);
    case DType::F8E4M3:
    case DType::F8E4M3FNUZ:
    case DType::F8E5M2:
    case DType::F8E5M2FNUZ:
    case DType::F8E8M0:
      return with_dtype(tensor, DType::U8);
    case DType::F4E2M1:
      return with_dtype(tensor, DType::U4).cast(DType::U8);
    case DType::U4:
    case DType::U2:
      return tensor.cast(DType::U8);
    case DType::I4:
    case DType::I2:
      return tensor.cast(DType::I8);
    default:
      return tensor;
  }
}

// Code points of UTF-8 text; a byte that fits nowhere stands for itself, so that nothing is refused on
// output.
std::vector<uint32_t> decode_utf8(const std::string& text) {
  std::vector<uint32_t> codes;
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const size_t length = lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    uint32_t code = length == 1 ? lead : lead & (0x7FU >> length);
    bool valid = lead < 0x80 || (lead >= 0xC2 && lead < 0xF5 && i + length <= text.size());
    for (size_t k = 1; valid && k < length; ++k) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      valid = (next & 0xC0) == 0x80;
      code = code << 6 | (next & 0x3F);
    }
    valid = valid && code <= 0x10FFFF && (code < 0xD800 || code >= 0xE000);
    codes.push_back(valid ? code : lead);
    i += valid ? length : 1;
  }
  return codes;
}

Parts text_parts(const Tensor& tensor) {
  std::vector<std::vector<uint32_t>> texts;
  size_t width = 1;
  for (const std::string& text : tensor.strings()) {
    texts.push_back(decode_utf8(text));
    width = std::max(width, texts.back().size());
  }
  Tensor elements =
      Tensor::zeros(DType::U32, {static_cast<int64_t>(texts.size()), static_cast<int64_t>(width)});
  const auto out = elements.mutable_data<uint32_t>();
  for (size_t i = 0; i < texts.size(); ++i) {
    std::copy(texts[i].begin(), texts[i].end(), out.begin() + static_cast<ptrdiff_t>(i * width));
  }
  return {make_header("<U" + std::to_string(width), tensor.shape()), elements};
}

}  // namespace

Tensor parse(std::span<const std::byte> bytes, std::shared_ptr<const void> owner, const std::string& name) {
  return with_context("reading '" + name + "'", [&] {
    const Header header = parse_header(bytes);
    return parse_elements(header, bytes.subspan(header.size), std::move(owner));
  });
}

Tensor read(const std::filesystem::path& path) {
  const auto file = MappedFile::open(path);
  return parse(file->bytes(), file, path.string());
}

Parts to_parts(const Tensor& tensor) {
  if (!tensor.defined()) throw_error(ErrorCode::Internal, "an undefined tensor cannot be written");
  if (tensor.dtype() == DType::String) return text_parts(tensor);
  Tensor elements = for_numpy(tensor);
  return {make_header(descr_of(elements.dtype()), tensor.shape()), std::move(elements)};
}

void write(const std::filesystem::path& path, const Tensor& tensor) {
  const Parts parts = to_parts(tensor);
  AtomicFile file(path);
  file.write(parts.header);
  file.write(std::span(parts.elements.bytes(), static_cast<size_t>(parts.elements.byte_size())));
  file.commit();
}

}  // namespace quern::npy
