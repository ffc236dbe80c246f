#include "runtime/kernel_table.h"

#include <algorithm>
#include <cstdlib>

namespace quern::runtime {

const KernelTable& KernelTable::instance() {
  static const KernelTable table = [] {
    KernelTable built;
    register_all_kernels(built);
    return built;
  }();
  return table;
}

void KernelTable::add(std::string_view domain, std::string_view op, Kernel kernel) {
  table_[{std::string(domain), std::string(op)}].push_back(std::move(kernel));
}

std::vector<const Kernel*> KernelTable::find(std::string_view domain, std::string_view op, int opset) const {
  const auto found = table_.find(std::pair<std::string, std::string>(domain, op));
  if (found == table_.end()) return {};
  std::vector<const Kernel*> kernels;
  for (const Kernel& kernel : found->second) {
    if (kernel.since > opset) continue;
    const auto same = std::find_if(kernels.begin(), kernels.end(), [&](const Kernel* other) {
      return other->implementation == kernel.implementation;
    });
    if (same == kernels.end()) {
      kernels.push_back(&kernel);
    } else if ((*same)->since < kernel.since) {
      *same = &kernel;
    }
  }
  std::stable_partition(kernels.begin(), kernels.end(), [](const Kernel* kernel) {
    return kernel->implementation != kReferenceImplementation;
  });
  return kernels;
}

int KernelTable::lowest_version(std::string_view domain, std::string_view op) const {
  const auto found = table_.find(std::pair<std::string, std::string>(domain, op));
  if (found == table_.end()) return 0;
  return std::min_element(found->second.begin(), found->second.end(),
                          [](const Kernel& a, const Kernel& b) { return a.since < b.since; })
      ->since;
}

bool KernelTable::knows_domain(std::string_view domain) const {
  return std::any_of(table_.begin(), table_.end(),
                     [&](const auto& entry) { return entry.first.first == domain; });
}

std::vector<std::pair<std::string, std::string>> KernelTable::operators() const {
  std::vector<std::pair<std::string, std::string>> names;
  for (const auto& [name, kernels] : table_) names.push_back(name);
  return names;
}

const Kernel& select_kernel(std::span<const Kernel* const> candidates, std::string_view forced,
                            const KernelContext& context) {
  const auto accepts = [&](const Kernel* kernel) {
    return kernel->accepts == nullptr || kernel->accepts(context);
  };
  if (!forced.empty()) {
    for (const Kernel* kernel : candidates) {
      if (kernel->implementation == forced && accepts(kernel)) return *kernel;
    }
  }
  for (const Kernel* kernel : candidates) {
    if (accepts(kernel)) return *kernel;
  }
  context.unsupported("no kernel takes inputs of these types and shapes");
}

std::string_view forced_kernel() {
  static const std::string name = [] {
    const char* value = std::getenv("QUERN_FORCE_KERNEL");
    return std::string(value == nullptr ? "" : value);
  }();
  return name;
}

}  // namespace quern::runtime
