#include "passes/registry.h"

#include "ir/near_names.h"

namespace quern::passes {

const PassRegistry& PassRegistry::instance() {
  static const PassRegistry registry = [] {
    PassRegistry made;
    register_all_passes(made);
    return made;
  }();
  return registry;
}

void PassRegistry::add(Factory factory) {
  const std::string name = factory()->name();
  if (!factories_.emplace(name, std::move(factory)).second) {
    throw_error(ErrorCode::Internal, "two passes are called '", name, "'");
  }
}

std::vector<std::string> PassRegistry::names() const {
  std::vector<std::string> result;
  for (const auto& [name, factory] : factories_) result.push_back(name);
  return result;
}

std::unique_ptr<Pass> PassRegistry::create(const std::string& name, const nlohmann::json& options) const {
  const auto found = factories_.find(name);
  if (found == factories_.end()) {
    throw_error(ErrorCode::InvalidArgument, "there is no pass '", name, "'", did_you_mean(name, names()));
  }
  std::unique_ptr<Pass> pass = found->second();
  pass->options().set(options, "pass '" + name + "'");
  return pass;
}

}  // namespace quern::passes
