#include "formats/artifact/messages.h"

#include "ir/error.h"

namespace quern::artifact {
namespace {

struct TypeRow {
  DType dtype;
  proto::ElementType number;
};
constexpr TypeRow kTypes[] = {
    {DType::Undefined, proto::UNDEFINED},
    {DType::F32, proto::F32},
    {DType::F64, proto::F64},
    {DType::F16, proto::F16},
    {DType::BF16, proto::BF16},
    {DType::F8E4M3, proto::F8E4M3},
    {DType::F8E4M3FNUZ, proto::F8E4M3FNUZ},
    {DType::F8E5M2, proto::F8E5M2},
    {DType::F8E5M2FNUZ, proto::F8E5M2FNUZ},
    {DType::F4E2M1, proto::F4E2M1},
    {DType::F8E8M0, proto::F8E8M0},
    {DType::I64, proto::I64},
    {DType::I32, proto::I32},
    {DType::I16, proto::I16},
    {DType::I8, proto::I8},
    {DType::I4, proto::I4},
    {DType::I2, proto::I2},
    {DType::U64, proto::U64},
    {DType::U32, proto::U32},
    {DType::U16, proto::U16},
    {DType::U8, proto::U8},
    {DType::U4, proto::U4},
    {DType::U2, proto::U2},
    {DType::Bool, proto::BOOL},
    {DType::String, proto::STRING},
};

// Far beyond what shape inference makes of any model.
constexpr int kMaxTerms = 1000;
constexpr int kMaxFactors = 100;

[[noreturn]] void refuse_number(const char* what, uint32_t number) {
  throw_error(ErrorCode::Unsupported, what, " number ", number,
              " is unknown to this quern; a newer one may have written the file: use that, or convert again");
}

}  // namespace

proto::ElementType encode_dtype(DType dtype) {
  for (const TypeRow& row : kTypes) {
    if (row.dtype == dtype) return row.number;
  }
  throw_error(ErrorCode::Internal, "no number for the element type ", to_string(dtype));
}

DType decode_dtype(uint32_t number) {
  for (const TypeRow& row : kTypes) {
    if (static_cast<uint32_t>(row.number) == number) return row.dtype;
  }
  refuse_number("element type", number);
}

proto::Scheme encode_scheme(const QuantScheme& scheme) {
  proto::Scheme out;
  out.set_code(encode_dtype(scheme.code));
  out.set_symmetric(scheme.symmetric);
  switch (scheme.granularity) {
    case QuantScheme::Granularity::Tensor:
      out.set_granularity(proto::Scheme::TENSOR);
      break;
    case QuantScheme::Granularity::Channel:
      out.set_granularity(proto::Scheme::CHANNEL);
      break;
    case QuantScheme::Granularity::Group:
      out.set_granularity(proto::Scheme::GROUP);
      break;
  }
  out.set_axis(scheme.axis);
  out.set_group_size(scheme.group_size);
  if (scheme.bits != 0) out.set_bits(scheme.bits);
  return out;
}

QuantScheme decode_scheme(const proto::Scheme& scheme) {
  QuantScheme out;
  out.code = decode_dtype(scheme.code());
  out.symmetric = scheme.symmetric();
  switch (scheme.granularity()) {
    case proto::Scheme::TENSOR:
      out.granularity = QuantScheme::Granularity::Tensor;
      break;
    case proto::Scheme::CHANNEL:
      out.granularity = QuantScheme::Granularity::Channel;
      break;
    case proto::Scheme::GROUP:
      out.granularity = QuantScheme::Granularity::Group;
      break;
    default:
      refuse_number("granularity", scheme.granularity());
  }
  out.axis = scheme.axis();
  out.group_size = scheme.group_size();
  out.bits = scheme.bits();
  return out;
}

proto::Packed encode_spec(const PackedSpec& spec) {
  proto::Packed out;
  out.set_layout(static_cast<uint32_t>(spec.layout));
  out.set_rows(spec.rows);
  out.set_cols(spec.cols);
  if (spec.is_quantized()) {
    *out.mutable_scheme() = encode_scheme(spec.scheme);
    out.set_scale_type(encode_dtype(spec.scale_dtype));
  }
  return out;
}

PackedSpec decode_spec(const proto::Packed& packed) {
  PackedSpec spec;
  spec.layout = static_cast<PackedLayout>(packed.layout());
  spec.rows = packed.rows();
  spec.cols = packed.cols();
  if (packed.has_scheme()) spec.scheme = decode_scheme(packed.scheme());
  if (packed.has_scale_type()) spec.scale_dtype = decode_dtype(packed.scale_type());
  return spec;
}

uint32_t SymbolWriter::number(const std::string& symbol) {
  const auto [place, fresh] = numbers_.try_emplace(symbol, static_cast<uint32_t>(numbers_.size()));
  if (fresh) manifest_.add_symbols(symbol.starts_with('?') ? std::string() : symbol);
  return place->second;
}

void SymbolWriter::encode(const Dim& dim, proto::Dim& out) {
  if (dim.offset() != 0) out.set_offset(dim.offset());
  for (const auto& [monomial, coefficient] : dim.terms()) {
    proto::Term& term = *out.add_terms();
    term.set_coefficient(coefficient);
    for (const std::string& symbol : monomial) term.add_symbols(number(symbol));
  }
}

proto::Type SymbolWriter::encode(const ValueType& type) {
  proto::Type out;
  out.set_element_type(encode_dtype(type.dtype));
  if (type.shape) {
    out.mutable_shape();
    for (const Dim& dim : *type.shape) encode(dim, *out.mutable_shape()->add_dims());
  }
  if (type.kind == ValueType::Kind::Sequence) out.set_kind(proto::Type::SEQUENCE);
  if (type.kind == ValueType::Kind::Optional) out.set_kind(proto::Type::OPTIONAL);
  return out;
}

SymbolReader::SymbolReader(const proto::Manifest& manifest) {
  for (const std::string& name : manifest.symbols()) {
    symbols_.push_back(name.empty() || name.starts_with('?') ? Dim::fresh() : Dim::symbol(name));
  }
}

Dim SymbolReader::decode(const proto::Dim& dim) const {
  if (dim.terms_size() > kMaxTerms) throw_error(ErrorCode::Corrupt, "a dimension has too many terms");
  Dim result(dim.offset());
  for (const proto::Term& term : dim.terms()) {
    if (term.symbols_size() > kMaxFactors)
      throw_error(ErrorCode::Corrupt, "a dimension has too many factors");
    Dim product(term.coefficient());
    for (const uint32_t symbol : term.symbols()) {
      if (symbol >= symbols_.size())
        throw_error(ErrorCode::Corrupt, "a dimension names symbol ", symbol, " of ", symbols_.size());
      product = product * symbols_[symbol];
    }
    result = result + product;
  }
  return result;
}

ValueType SymbolReader::decode(const proto::Type& type) const {
  ValueType out;
  out.dtype = decode_dtype(type.element_type());
  if (type.has_shape()) {
    out.shape.emplace();
    for (const proto::Dim& dim : type.shape().dims()) out.shape->push_back(decode(dim));
  }
  switch (type.kind()) {
    case proto::Type::TENSOR:
      break;
    case proto::Type::SEQUENCE:
      out.kind = ValueType::Kind::Sequence;
      break;
    case proto::Type::OPTIONAL:
      out.kind = ValueType::Kind::Optional;
      break;
    default:
      refuse_number("type kind", type.kind());
  }
  return out;
}

}  // namespace quern::artifact
