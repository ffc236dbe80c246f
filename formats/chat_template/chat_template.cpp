#include "formats/chat_template/chat_template.h"

#include "formats/chat_template/interpreter.h"
#include "ir/error.h"

namespace quern::chat_template {

struct ChatTemplate::Tree {
  Nodes nodes;
};

ChatTemplate::ChatTemplate(std::string_view source) {
  auto tree = std::make_shared<Tree>();
  tree->nodes = parse(source);
  tree_ = std::move(tree);
}

std::string ChatTemplate::render(const nlohmann::ordered_json& variables,
                                 const RenderOptions& options) const {
  if (!variables.is_object())
    throw_error(ErrorCode::InvalidArgument, "the variables of a chat template are an object");
  Interpreter interpreter({.max_steps = options.max_steps, .max_output = options.max_output}, options.now);
  try {
    return interpreter.run(tree_->nodes, Value::from_json(variables).entries());
  } catch (const nlohmann::json::exception& error) {
    throw_error(ErrorCode::BadData, "the variables of a chat template: ", error.what());
  }
}

}  // namespace quern::chat_template
