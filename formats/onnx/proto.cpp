#include "formats/onnx/proto.h"

#include "ir/error.h"

namespace quern::onnx_format {
namespace {

struct TypeRow {
  int number;
  DType dtype;
  const char* name;
};

// TensorProto.DataType, up to ONNX 1.23. The numbers are spelled out because an older ONNX lacks the later
// names.
constexpr TypeRow kTypes[] = {{1, DType::F32, "float"},
                              {2, DType::U8, "uint8"},
                              {3, DType::I8, "int8"},
                              {4, DType::U16, "uint16"},
                              {5, DType::I16, "int16"},
                              {6, DType::I32, "int32"},
                              {7, DType::I64, "int64"},
                              {8, DType::String, "string"},
                              {9, DType::Bool, "bool"},
                              {10, DType::F16, "float16"},
                              {11, DType::F64, "double"},
                              {12, DType::U32, "uint32"},
                              {13, DType::U64, "uint64"},
                              {14, DType::Undefined, "complex64"},
                              {15, DType::Undefined, "complex128"},
                              {16, DType::BF16, "bfloat16"},
                              {17, DType::F8E4M3, "float8e4m3fn"},
                              {18, DType::F8E4M3FNUZ, "float8e4m3fnuz"},
                              {19, DType::F8E5M2, "float8e5m2"},
                              {20, DType::F8E5M2FNUZ, "float8e5m2fnuz"},
                              {21, DType::U4, "uint4"},
                              {22, DType::I4, "int4"},
                              {23, DType::F4E2M1, "float4e2m1"},
                              {24, DType::F8E8M0, "float8e8m0"},
                              {25, DType::U2, "uint2"},
                              {26, DType::I2, "int2"},
                              {27, DType::Undefined, "float6e2m3"},
                              {28, DType::Undefined, "float6e3m2"}};

Dim dim_from_onnx(const onnx::TensorShapeProto::Dimension& dim, std::map<std::string, Dim>& fresh) {
  // Some exporters write -1 for "unknown".
  if (dim.has_dim_value()) return dim.dim_value() >= 0 ? Dim(dim.dim_value()) : Dim::fresh();
  if (!dim.has_dim_param() || dim.dim_param().empty()) return Dim::fresh();
  const std::string& text = dim.dim_param();
  if (text.find('?') != std::string::npos) return fresh.try_emplace(text, Dim::fresh()).first->second;
  // Exporters write short sums and products; what is long is only a name.
  return text.size() <= 200 ? Dim::parse(text) : Dim::symbol(text);
}

ValueType tensor_type(const onnx::TypeProto& type, std::map<std::string, Dim>& fresh) {
  ValueType result;
  if (!type.has_tensor_type()) return result;
  const int number = type.tensor_type().elem_type();
  result.dtype = dtype_from_onnx(number);
  if (result.dtype == DType::Undefined && number != 0) {
    throw_error(ErrorCode::Unsupported, "elements of type ", onnx_type_name(number), " are not supported");
  }
  if (type.tensor_type().has_shape()) {
    result.shape.emplace();
    for (const auto& dim : type.tensor_type().shape().dim())
      result.shape->push_back(dim_from_onnx(dim, fresh));
  }
  return result;
}

}  // namespace

DType dtype_from_onnx(int data_type) {
  for (const TypeRow& row : kTypes) {
    if (row.number == data_type) return row.dtype;
  }
  return DType::Undefined;
}

int dtype_to_onnx(DType dtype) {
  for (const TypeRow& row : kTypes) {
    if (row.dtype == dtype && dtype != DType::Undefined) return row.number;
  }
  throw_error(ErrorCode::Internal, "no ONNX type for ", to_string(dtype));
}

std::string onnx_type_name(int data_type) {
  for (const TypeRow& row : kTypes) {
    if (row.number == data_type) return row.name;
  }
  return "number " + std::to_string(data_type);
}

ValueType type_from_onnx(const onnx::TypeProto& type, std::map<std::string, Dim>& fresh) {
  switch (type.value_case()) {
    case onnx::TypeProto::VALUE_NOT_SET:
      return {};
    case onnx::TypeProto::kTensorType:
      return tensor_type(type, fresh);
    case onnx::TypeProto::kSequenceType:
    case onnx::TypeProto::kOptionalType: {
      const bool sequence = type.value_case() == onnx::TypeProto::kSequenceType;
      const onnx::TypeProto& element =
          sequence ? type.sequence_type().elem_type() : type.optional_type().elem_type();
      if (!element.has_tensor_type() && element.value_case() != onnx::TypeProto::VALUE_NOT_SET) {
        throw_error(ErrorCode::Unsupported, sequence ? "sequences" : "optionals",
                    " of anything but tensors are not supported");
      }
      ValueType result = tensor_type(element, fresh);
      result.kind = sequence ? ValueType::Kind::Sequence : ValueType::Kind::Optional;
      return result;
    }
    default:
      throw_error(ErrorCode::Unsupported, "maps, sparse tensors and opaque types are not supported");
  }
}

onnx::TypeProto type_to_onnx(const ValueType& type) {
  onnx::TypeProto result;
  onnx::TypeProto* tensor = &result;
  if (type.kind == ValueType::Kind::Sequence) tensor = result.mutable_sequence_type()->mutable_elem_type();
  if (type.kind == ValueType::Kind::Optional) tensor = result.mutable_optional_type()->mutable_elem_type();
  if (type.dtype == DType::Undefined) return result;
  tensor->mutable_tensor_type()->set_elem_type(dtype_to_onnx(type.dtype));
  if (!type.shape) return result;
  auto* shape = tensor->mutable_tensor_type()->mutable_shape();
  for (const Dim& dim : *type.shape) {
    auto* out = shape->add_dim();
    const std::string text = dim.to_string();
    if (dim.is_constant()) {
      out->set_dim_value(dim.constant());
    } else if (text.find('?') == std::string::npos) {
      out->set_dim_param(text);  // a dimension that has no name of its own stays empty
    }
  }
  return result;
}

std::string describe(const onnx::NodeProto& node) {
  const std::string domain = normal_domain(node.domain());
  const std::string op = domain.empty() ? node.op_type() : domain + "." + node.op_type();
  if (!node.name().empty()) return "node " + quoted(node.name()) + " (" + op + ")";
  for (const std::string& output : node.output()) {
    if (!output.empty()) return op + " node producing " + quoted(output);
  }
  return op + " node";
}

std::vector<std::string> newer_field(const google::protobuf::Message& message, int number) {
  std::vector<std::string> result;
  const auto* reflection = message.GetReflection();
  const auto* field = message.GetDescriptor()->FindFieldByNumber(number);
  if (field == nullptr) {
    const auto& unknown = reflection->GetUnknownFields(message);
    for (int i = 0; i < unknown.field_count(); ++i) {
      const auto& item = unknown.field(i);
      if (item.number() == number && item.type() == google::protobuf::UnknownField::TYPE_LENGTH_DELIMITED) {
        result.push_back(item.length_delimited());
      }
    }
  } else if (field->is_repeated()) {
    for (int i = 0; i < reflection->FieldSize(message, field); ++i) {
      result.push_back(reflection->GetRepeatedMessage(message, field, i).SerializeAsString());
    }
  } else if (reflection->HasField(message, field)) {
    result.push_back(reflection->GetString(message, field));
  }
  return result;
}

std::string newer_string(const google::protobuf::Message& message, int number) {
  const std::vector<std::string> values = newer_field(message, number);
  return values.empty() ? std::string() : values.back();
}

std::string normal_domain(const std::string& domain) {
  return domain == "ai.onnx" ? std::string() : domain;
}

std::string quoted(const std::string& name) {
  constexpr size_t kLongest = 200;
  return "'" + (name.size() <= kLongest ? name : name.substr(0, kLongest) + "...") + "'";
}

}  // namespace quern::onnx_format
