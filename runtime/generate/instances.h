// Several decoders of one model side by side, each on cores of its own.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "runtime/decoder/session.h"
#include "runtime/generate/core_sets.h"
#include "runtime/generate/generate.h"

namespace quern::runtime {

struct InstancesOptions {
  int count = 1;
  // Of each instance. threads 0: one for each of its cores; cache_memory is of all of them together.
  SessionOptions session = {};
  // false: they go where the system puts them, and there may be more of them than cores.
  bool pin = true;
};

// Sessions on one program, whose weights they share; caches and threads are each session's own. A batch makes
// better use of a large model's weights, instances have no threads that wait for one another: which is
// faster, `quern bench --instances` tells.
class Instances {
 public:
  // Throws Error{InvalidArgument} for more instances than cores, or threads than cores, Error{Unsupported}
  // where the system pins no threads, and what Session throws.
  Instances(const std::shared_ptr<const Program>& program, const InstancesOptions& options);

  int size() const { return static_cast<int>(sessions_.size()); }
  Session& session(int instance) { return *sessions_.at(static_cast<size_t>(instance)); }
  int threads() const;  // of all together

  // What an instance has of its own: a prefix cache of its session, a strategy that counts. Called for each
  // one after the other, before any of them decodes.
  using Prepare = std::function<void(int instance, GenerateOptions& options)>;

  // As generate(), with the same results: whenever an instance has room for a text
  // (GenerateOptions::parallel, of each, 1 at least) it takes the next prompt. `callback` is called by one
  // thread at a time, not always the same one; so is `decoder`; `strategy` is called by several at once. What
  // the output says of time is that of the wall, but for prefill_seconds and decode_seconds, which are sums.
  // Where one instance fails the others stop, and its error is thrown: of several that of the first.
  GenerateOutput generate(std::span<const std::vector<int64_t>> prompts, const GenerateOptions& options,
                          const GenerateCallback& callback = {}, const Prepare& prepare = {});

 private:
  template <class Body>
  void on_each(Body&& body);

  std::vector<CoreSet> cores_;  // empty: not pinned
  std::vector<std::unique_ptr<Session>> sessions_;
};

}  // namespace quern::runtime
