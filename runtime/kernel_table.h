// Which code computes an operator: for each, an ordered list of implementations.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/kernel_context.h"

namespace quern::runtime {

inline constexpr std::string_view kReferenceImplementation = "reference";

using KernelFunction = void (*)(KernelContext&);

struct Kernel {
  std::string implementation;  // "reference", "cpu", ...: unique within an operator and version
  int since = 1;               // serves opsets from here up to the next entry of the same implementation
  KernelFunction run = nullptr;
  // Whether this one can compute the node with the inputs at hand (dtypes, shapes); null: always.
  bool (*accepts)(const KernelContext&) = nullptr;
};

class KernelTable {
 public:
  // All kernels, registered on first use by register_all_kernels. Immutable afterwards; thread-safe.
  static const KernelTable& instance();

  void add(std::string_view domain, std::string_view op, Kernel kernel);

  // The implementations that serve the operator in that version, in order of preference: in the order of
  // registration, except that the reference comes last. Empty where there are none.
  std::vector<const Kernel*> find(std::string_view domain, std::string_view op, int opset) const;
  std::vector<const Kernel*> find(const Node& node) const {
    return find(node.domain(), node.op(), node.opset());
  }

  // The lowest version that any implementation serves; 0 for an unknown operator.
  int lowest_version(std::string_view domain, std::string_view op) const;
  bool knows_domain(std::string_view domain) const;
  // (domain, operator) of all, in that order.
  std::vector<std::pair<std::string, std::string>> operators() const;

 private:
  std::map<std::pair<std::string, std::string>, std::vector<Kernel>, std::less<>> table_;
};

// The first of `candidates` named `forced`, if there is one; else the first that accepts. Throws
// Error{Unsupported} where none does.
const Kernel& select_kernel(std::span<const Kernel* const> candidates, std::string_view forced,
                            const KernelContext& context);

// The value of the environment variable QUERN_FORCE_KERNEL, read once; empty where it is not set.
std::string_view forced_kernel();

// Specialised implementations first. Each family has a registration function of its own.
void register_all_kernels(KernelTable& table);

}  // namespace quern::runtime
