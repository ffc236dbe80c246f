#include "formats/onnx/graph_builder.h"

#include "ir/error.h"

namespace quern::onnx_format {
namespace {

bool is_anonymous(const Dim& dim) {
  const std::optional<std::string> symbol = dim.as_symbol();
  return symbol && symbol->starts_with('?');
}

}  // namespace

void Scope::define(const std::string& name, Value* value) {
  if (!values_.emplace(name, value).second) {
    throw_error(ErrorCode::InvalidModel, "value ", quoted(name), " is defined twice");
  }
}

std::optional<Value*> Scope::find(const std::string& name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->outer_) {
    const auto found = scope->values_.find(name);
    if (found != scope->values_.end()) return found->second;
  }
  return std::nullopt;
}

void GraphBuilder::build(const onnx::GraphProto& proto, const Frame* outer) {
  Scope scope(outer ? outer->scope : nullptr);
  note_types(proto);
  add_inputs(proto, outer == nullptr, scope);
  add_initializers(proto, scope);
  Frame frame{.scope = &scope, .opsets = outer ? outer->opsets : &state_.opsets};
  if (outer) {
    frame.bound = outer->bound;
    frame.function = outer->function;
    frame.caller = outer->caller;
  }
  build_nodes(proto.node(), frame);
  add_outputs(proto, scope);
  rewriter_.commit();
}

ValueType GraphBuilder::type_of_info(const onnx::ValueInfoProto& info) {
  ValueType type;
  state_.problems.collect([&] {
    with_context("reading the type of value " + quoted(info.name()),
                 [&] { type = type_from_onnx(info.type(), state_.fresh_dims); });
  });
  return type;
}

void GraphBuilder::note_types(const onnx::GraphProto& proto) {
  for (const auto& info : proto.value_info()) declared_[info.name()] = type_of_info(info);
  for (const auto& info : proto.output()) declared_[info.name()] = type_of_info(info);
  for (const auto& node : proto.node()) taken_names_.insert(node.output().begin(), node.output().end());
  for (const auto& info : proto.input()) taken_names_.insert(info.name());
  for (const auto& tensor : proto.initializer()) taken_names_.insert(tensor.name());
  for (const auto& sparse : proto.sparse_initializer()) taken_names_.insert(sparse.values().name());
}

void GraphBuilder::add_inputs(const onnx::GraphProto& proto, bool is_root, Scope& scope) {
  // Up to IR 3 every initializer was an input as well, and later ones may be: as a default that callers
  // seldom change.
  std::set<std::string> initialized;
  if (is_root) {
    for (const auto& tensor : proto.initializer()) initialized.insert(tensor.name());
    for (const auto& sparse : proto.sparse_initializer()) initialized.insert(sparse.values().name());
  }
  for (const auto& info : proto.input()) {
    if (info.name().empty()) throw_error(ErrorCode::InvalidModel, "a graph input has no name");
    if (initialized.contains(info.name())) continue;
    scope.define(info.name(), rewriter_.add_input(info.name(), type_of_info(info)));
  }
}

void GraphBuilder::add_initializers(const onnx::GraphProto& proto, Scope& scope) {
  const auto add = [&](const std::string& name, const auto& tensor) {
    if (name.empty()) throw_error(ErrorCode::InvalidModel, "an initializer has no name");
    Tensor data;
    state_.problems.collect([&] {
      with_context("reading initializer " + quoted(name), [&] { data = state_.tensors.read(tensor); });
    });
    scope.define(name, rewriter_.add_constant(std::move(data), name));
  };
  for (const auto& tensor : proto.initializer()) add(tensor.name(), tensor);
  for (const auto& sparse : proto.sparse_initializer()) add(sparse.values().name(), sparse);
}

void GraphBuilder::add_outputs(const onnx::GraphProto& proto, const Scope& scope) {
  std::set<std::string> names;
  for (const auto& info : proto.output()) {
    const std::optional<Value*> value = scope.find(info.name());
    if (!value || *value == nullptr) {
      throw_error(ErrorCode::InvalidModel, "graph output ", quoted(info.name()), " is produced by no node");
    }
    if (!names.insert(info.name()).second) {
      throw_error(ErrorCode::InvalidModel, "graph output ", quoted(info.name()), " is listed twice");
    }
    rewriter_.add_output(*value, info.name());
  }
}

void GraphBuilder::apply_declared_type(Value* value, const std::string& name) {
  const auto found = declared_.find(name);
  if (found == declared_.end()) return;
  const ValueType& declared = found->second;
  ValueType type = value->type();
  if (declared.dtype != DType::Undefined && type.dtype != DType::Undefined &&
      (declared.dtype != type.dtype || declared.kind != type.kind)) {
    throw_error(ErrorCode::InvalidModel, "value ", quoted(name), " is declared as ", to_string(declared),
                ", but computing it gives ", to_string(type));
  }
  if (type.dtype == DType::Undefined) {
    type.dtype = declared.dtype;
    type.kind = declared.kind;
  }
  if (!type.shape) {
    type.shape = declared.shape;
  } else if (declared.shape) {
    const auto contradiction = [&] {
      state_.warnings.push_back(concat("value ", quoted(name), " is declared with shape ",
                                       to_string(*declared.shape), ", but computing it gives ",
                                       to_string(*type.shape), "; the declaration is ignored"));
    };
    if (declared.shape->size() != type.shape->size()) return contradiction();
    for (size_t i = 0; i < type.shape->size(); ++i) {
      const Dim& dim = (*declared.shape)[i];
      Dim& known = (*type.shape)[i];
      if (known.is_constant() && dim.is_constant() && !(known == dim)) return contradiction();
      if (is_anonymous(known)) known = dim;
    }
  }
  if (!(type == value->type())) rewriter_.set_type(value, std::move(type));
}

std::string GraphBuilder::graph_name(const std::string& name, const Frame& frame) {
  if (frame.prefix.empty()) return name;
  const auto renamed = frame.renames.find(name);
  if (renamed != frame.renames.end()) return renamed->second;
  std::string unique = frame.prefix + name;
  for (int i = 1; !taken_names_.insert(unique).second; ++i) unique = concat(frame.prefix, name, ".", i);
  return unique;
}

}  // namespace quern::onnx_format
