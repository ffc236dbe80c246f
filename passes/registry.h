// All passes by name.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "passes/pass.h"

namespace quern::passes {

class PassRegistry {
 public:
  using Factory = std::function<std::unique_ptr<Pass>()>;

  // Every pass of quern, made on first use by register_all_passes(). Immutable afterwards; thread-safe.
  static const PassRegistry& instance();

  // Throws Error{Internal} if the pass's name is taken.
  void add(Factory factory);
  // registry.add<MyPass>()
  template <class P>
  void add() {
    add([] { return std::make_unique<P>(); });
  }

  bool contains(const std::string& name) const { return factories_.contains(name); }
  std::vector<std::string> names() const;  // sorted
  // A pass with its options set from a JSON object (or null). Throws Error{InvalidArgument} on an unknown
  // name (showing near ones) and as OptionTable::set does.
  std::unique_ptr<Pass> create(const std::string& name, const nlohmann::json& options = nullptr) const;

 private:
  std::map<std::string, Factory> factories_;
};

// The one place where passes are registered (passes/register.cpp); calls one function per folder.
void register_all_passes(PassRegistry& registry);

}  // namespace quern::passes
