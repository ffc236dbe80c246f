#include "runtime/generate/instances.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#include "ir/error.h"
#include "runtime/generate/prompt_queue.h"

namespace quern::runtime {
namespace {

// Puts the results that an instance has found among those of all.
void merge(GenerateOutput& all, GenerateOutput& part) {
  for (const size_t prompt : part.prompts) all.results[prompt] = std::move(part.results[prompt]);
  all.prompts.insert(all.prompts.end(), part.prompts.begin(), part.prompts.end());
  GenerateTiming& sum = all.timing;
  const GenerateTiming& timing = part.timing;
  sum.prompt_tokens += timing.prompt_tokens;
  sum.generated_tokens += timing.generated_tokens;
  sum.prefill_seconds += timing.prefill_seconds;
  sum.decode_seconds += timing.decode_seconds;
  sum.decode_tokens += timing.decode_tokens;
  sum.cached_tokens += timing.cached_tokens;
  sum.context_shifts += timing.context_shifts;
  sum.put_back += timing.put_back;
  if (timing.first_token_seconds > 0 &&
      (sum.first_token_seconds == 0 || timing.first_token_seconds < sum.first_token_seconds)) {
    sum.first_token_seconds = timing.first_token_seconds;
  }
  if (!part.speculation) return;
  if (!all.speculation) all.speculation.emplace();
  *all.speculation += *part.speculation;
}

}  // namespace

// Runs body(instance) on a thread for each instance, on its cores; throws the error that came first.
template <class Body>
void Instances::on_each(Body&& body) {
  std::mutex mutex;
  std::exception_ptr failure;
  std::vector<std::thread> threads;
  threads.reserve(sessions_.size());
  const auto run = [&](size_t instance) {
    try {
      if (!cores_.empty()) pin_this_thread(cores_[instance]);
      body(instance);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  try {
    for (size_t i = 0; i < sessions_.size(); ++i) threads.emplace_back(run, i);
  } catch (const std::system_error& error) {
    for (std::thread& thread : threads) thread.join();
    throw_error(ErrorCode::OutOfMemory, "the system refuses threads for ", sessions_.size(),
                " instances: ", error.what());
  }
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

Instances::Instances(const std::shared_ptr<const Program>& program, const InstancesOptions& options) {
  if (options.count < 1) throw_error(ErrorCode::InvalidArgument, options.count, " instances");
  if (options.pin) cores_ = split_cores(options.count);
  sessions_.resize(static_cast<size_t>(options.count));
  SessionOptions own = options.session;
  own.team = nullptr;
  if (own.cache_memory > 0) own.cache_memory = std::max<int64_t>(1, own.cache_memory / options.count);
  for (const CoreSet& set : cores_) {
    if (own.threads <= set.cores) continue;
    throw_error(ErrorCode::InvalidArgument, options.count, " instances of ", own.threads,
                " threads do not fit the cores of this process: one of them would have ", set.cores);
  }
  // Threads inherit the cores of the thread that makes them.
  on_each([&](size_t i) {
    SessionOptions mine = own;
    if (mine.threads == 0) mine.threads = cores_.empty() ? 1 : cores_[i].cores;
    sessions_[i] = std::make_unique<Session>(program, mine);
  });
}

int Instances::threads() const {
  int sum = 0;
  for (const auto& session : sessions_) sum += session->threads();
  return sum;
}

GenerateOutput Instances::generate(std::span<const std::vector<int64_t>> prompts,
                                   const GenerateOptions& options, const GenerateCallback& callback,
                                   const Prepare& prepare) {
  const auto start = std::chrono::steady_clock::now();
  if (options.prefix_cache != nullptr || options.queue != nullptr) {
    throw_error(
        ErrorCode::InvalidArgument,
        "a prefix cache belongs to one session: instances take theirs from `prepare`, and their prompts "
        "from a queue of their own");
  }
  PromptQueue queue(prompts.size());
  std::mutex mutex;
  GenerateCallback one_at_a_time;
  if (callback) {
    one_at_a_time = [&](const GenerateEvent& event) {
      const std::lock_guard lock(mutex);
      callback(event);
    };
  }
  std::vector<GenerateOptions> own(sessions_.size(), options);
  for (size_t i = 0; i < own.size(); ++i) {
    own[i].queue = &queue;
    own[i].parallel = std::max<int64_t>(1, options.parallel);
    if (options.decoder) {
      own[i].decoder = [&] {
        const std::lock_guard lock(mutex);
        return options.decoder();
      };
    }
    if (prepare) prepare(static_cast<int>(i), own[i]);
  }
  std::vector<GenerateOutput> parts(sessions_.size());
  on_each([&](size_t i) {
    try {
      parts[i] = runtime::generate(*sessions_[i], prompts, own[i], one_at_a_time);
    } catch (...) {
      queue.close();
      throw;
    }
  });
  GenerateOutput all;
  all.results.resize(prompts.size());
  for (GenerateOutput& part : parts) merge(all, part);
  std::sort(all.prompts.begin(), all.prompts.end());
  all.timing.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return all;
}

}  // namespace quern::runtime
