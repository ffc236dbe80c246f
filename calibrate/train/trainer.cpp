#include "calibrate/train/trainer.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <random>

#include "formats/safetensors/safetensors.h"
#include "ir/error.h"

namespace quern::calibrate::train {
namespace {

std::span<const float> teacher_of(const RowSource& source, const Head& head) {
  return head.teacher >= 0 ? source.states(head.teacher) : std::span<const float>();
}

using Batch = std::vector<const std::vector<int64_t>*>;

int64_t count_targets(std::span<const int64_t> targets) {
  return std::count_if(targets.begin(), targets.end(), [](int64_t target) { return target >= 0; });
}

// The order of windows in an epoch, by Fisher and Yates: the same with every standard library.
std::vector<size_t> order_of(size_t windows, uint64_t seed, int64_t epoch) {
  std::vector<size_t> order(windows);
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(seed * 1'000'003 + static_cast<uint64_t>(epoch));
  for (size_t i = windows; i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  return order;
}

class Training {
 public:
  Training(std::span<Head> heads, RowSource& source, const Windows& training, const Windows& validation,
           const TrainOptions& options, const TrainHooks& hooks)
      : heads_(heads),
        source_(source),
        training_(training),
        validation_(validation),
        options_(options),
        hooks_(hooks),
        optimizer_(options.optimizer),
        best_(heads.size()),
        since_(heads.size()) {
    if (training.empty() || validation.empty())
      throw_error(ErrorCode::InvalidArgument, "there is nothing to train on, or to validate with");
    const auto windows = static_cast<int64_t>(training.size());
    per_epoch_ = (windows + options.batch - 1) / options.batch;
    steps_ = per_epoch_ * options.epochs;
    every_ = std::max<int64_t>(1, steps_ / std::max<int64_t>(1, options.validations));
    for (Head& head : heads_) {
      for (Parameter* p : head.trained()) parameters_.push_back(p);
    }
  }

  std::vector<HeadScore> run() {
    if (options_.resume && !options_.checkpoint.empty() && std::filesystem::exists(options_.checkpoint)) {
      load();
    } else {
      validate(0);
    }
    for (int64_t step = optimizer_.steps(); step < steps_; ++step) {
      if (hooks_.progress) hooks_.progress(step, steps_);
      train_step(step);
      if ((step + 1) % every_ == 0 || step + 1 == steps_) {
        validate(step + 1);
        if (!options_.checkpoint.empty()) save();
      }
    }
    std::vector<HeadScore> scores;
    for (size_t h = 0; h < heads_.size(); ++h) {
      restore(h);
      scores.push_back(best_[h].score);
    }
    return scores;
  }

 private:
  struct Best {
    HeadScore score;
    std::vector<std::vector<float>> values;
  };

  Batch batch_of(int64_t step) {
    const int64_t epoch = step / per_epoch_, first = step % per_epoch_ * options_.batch;
    if (epoch != epoch_) {
      epoch_ = epoch;
      order_ = order_of(training_.size(), options_.seed, epoch);
    }
    const int64_t last = std::min(first + options_.batch, static_cast<int64_t>(order_.size()));
    Batch batch;
    for (int64_t i = first; i < last; ++i) batch.push_back(&training_[order_[static_cast<size_t>(i)]]);
    return batch;
  }

  void train_step(int64_t step) {
    const Batch batch = batch_of(step);
    source_.compute(batch);
    for (size_t h = 0; h < heads_.size(); ++h) {
      const std::vector<int64_t> targets = source_.targets(batch, heads_[h].ahead);
      const int64_t rows = std::max<int64_t>(1, count_targets(targets));
      since_[h].add(run_head(heads_[h], source_.states(heads_[h].source), targets,
                             heads_[h].weight / static_cast<double>(rows), teacher_of(source_, heads_[h])));
    }
    optimizer_.step(parameters_, cosine_rate(step, steps_, options_.warm_up, options_.rate));
  }

  void validate(int64_t step) {
    Validation result{.step = step, .train = since_, .validation = score_heads(heads_, source_, validation_)};
    since_.assign(heads_.size(), {});
    for (size_t h = 0; h < heads_.size(); ++h) {
      // A loss that is no number is no better either.
      if (!best_[h].values.empty() && !(result.validation[h].loss < best_[h].score.loss)) continue;
      best_[h] = {result.validation[h], {}};
      for (const Parameter* p : heads_[h].trained()) best_[h].values.push_back(p->value);
    }
    if (hooks_.validated) hooks_.validated(result);
  }

  void restore(size_t h) {
    const std::vector<Parameter*> all = heads_[h].trained();
    for (size_t i = 0; i < all.size(); ++i) all[i]->value = best_[h].values[i];
  }

  // Everything that the next steps depend on; the order of windows follows from the step.
  void save() const {
    safetensors::File file;
    const auto put = [&](const std::string& name, const Shape& shape, const std::vector<float>& values) {
      Tensor tensor = Tensor::zeros(DType::F32, shape);
      std::copy(values.begin(), values.end(), tensor.mutable_data<float>().begin());
      file.tensors.emplace(name, std::move(tensor));
    };
    for (size_t h = 0; h < heads_.size(); ++h) {
      const std::vector<Parameter*> all = heads_[h].trained();
      for (size_t i = 0; i < all.size(); ++i) {
        put(all[i]->name, all[i]->shape, all[i]->value);
        put(all[i]->name + "/first", all[i]->shape, all[i]->first);
        put(all[i]->name + "/second", all[i]->shape, all[i]->second);
        put(all[i]->name + "/best", all[i]->shape, best_[h].values[i]);
      }
      const HeadScore& score = best_[h].score;
      Tensor kept = Tensor::zeros(DType::F64, {3});
      kept.set(0, score.loss);
      kept.set(1, static_cast<double>(score.rows));
      kept.set(2, static_cast<double>(score.correct));
      file.tensors.emplace(concat("best/", h), std::move(kept));
    }
    file.metadata = {{"step", std::to_string(optimizer_.steps())}, {"settings", settings()}};
    safetensors::write(options_.checkpoint, file);
  }

  void load() {
    const std::string name = options_.checkpoint.string();
    const safetensors::File file = safetensors::read(options_.checkpoint);
    const auto settings_then = file.metadata.find("settings"), step = file.metadata.find("step");
    if (settings_then == file.metadata.end() || step == file.metadata.end())
      throw_error(ErrorCode::BadData, "'", name, "' is no checkpoint of a training");
    if (settings_then->second != settings()) {
      throw_error(ErrorCode::InvalidArgument, "'", name, "' is of another training: it has ",
                  settings_then->second, "; this one has ", settings());
    }
    const auto get = [&](const std::string& tensor, std::vector<float>& values) {
      std::vector<float> read = file.at(tensor).to_floats();
      if (read.size() != values.size())
        throw_error(ErrorCode::BadData, "'", name, "': '", tensor, "' has ", read.size(), " elements");
      values = std::move(read);
    };
    for (size_t h = 0; h < heads_.size(); ++h) {
      best_[h].values.clear();
      for (Parameter* p : heads_[h].trained()) {
        get(p->name, p->value);
        get(p->name + "/first", p->first);
        get(p->name + "/second", p->second);
        get(p->name + "/best", best_[h].values.emplace_back(p->size()));
      }
      const Tensor& kept = file.at(concat("best/", h));
      if (kept.size() != 3) throw_error(ErrorCode::BadData, "'", name, "' is no checkpoint of a training");
      best_[h].score = {kept.at(0), std::llround(kept.at(1)), std::llround(kept.at(2))};
    }
    int64_t steps = 0;
    const char* end = step->second.data() + step->second.size();
    if (std::from_chars(step->second.data(), end, steps).ptr != end || steps < 0 || steps > steps_)
      throw_error(ErrorCode::BadData, "'", name, "' is at step '", step->second, "' of ", steps_);
    optimizer_.resume_at(steps);
  }

  std::string settings() const {
    return concat(options_.settings, " epochs ", options_.epochs, " batch ", options_.batch, " rate ",
                  options_.rate, " warm-up ", options_.warm_up, " decay ", options_.optimizer.weight_decay,
                  " seed ", options_.seed, " windows ", training_.size(), " and ", validation_.size());
  }

  std::span<Head> heads_;
  RowSource& source_;
  const Windows& training_;
  const Windows& validation_;
  const TrainOptions& options_;
  const TrainHooks& hooks_;
  AdamW optimizer_;
  std::vector<Parameter*> parameters_;
  std::vector<Best> best_;
  std::vector<HeadScore> since_;
  int64_t per_epoch_ = 0, steps_ = 0, every_ = 1;
  int64_t epoch_ = -1;
  std::vector<size_t> order_;
};

}  // namespace

Windows cut(std::span<const std::vector<int64_t>> documents, int64_t length, int64_t least) {
  Windows windows;
  for (const std::vector<int64_t>& document : documents) {
    const auto size = static_cast<int64_t>(document.size());
    for (int64_t first = 0; first < size; first += length) {
      const int64_t count = std::min(length, size - first);
      if (count < least) break;
      windows.emplace_back(document.begin() + first, document.begin() + first + count);
    }
  }
  return windows;
}

StateSource::StateSource(runtime::Session& session, int entry, std::vector<int> outputs)
    : session_(session), entry_(entry), outputs_(std::move(outputs)), states_(outputs_.size()) {}

std::vector<int64_t> StateSource::targets(WindowList windows, int64_t ahead) const {
  std::vector<int64_t> targets;
  for (const std::vector<int64_t>* window : windows) {
    for (size_t t = 0; t < window->size(); ++t) {
      const size_t at = t + static_cast<size_t>(ahead);
      targets.push_back(at < window->size() ? (*window)[at] : -1);
    }
  }
  return targets;
}

void StateSource::compute(WindowList windows) {
  std::vector<runtime::Sequence> sequences;
  std::vector<runtime::SequenceStep> steps;
  for (size_t i = 0; i < windows.size(); ++i) sequences.push_back(session_.new_sequence());
  for (size_t i = 0; i < windows.size(); ++i) {
    steps.push_back({.sequence = &sequences[i], .tokens = *windows[i], .logits = runtime::LogitsFor::All});
  }
  session_.run(steps, {.entry = entry_});
  for (size_t o = 0; o < outputs_.size(); ++o) {
    states_[o].clear();
    for (size_t i = 0; i < windows.size(); ++i) {
      for (size_t t = 0; t < windows[i]->size(); ++t) {
        const std::span<const float> row = session_.logits(i, static_cast<int64_t>(t), outputs_[o]);
        states_[o].insert(states_[o].end(), row.begin(), row.end());
      }
    }
  }
}

std::vector<HeadScore> score_heads(std::span<Head> heads, RowSource& source, const Windows& windows,
                                   int64_t batch) {
  std::vector<HeadScore> scores(heads.size());
  for (size_t first = 0; first < windows.size(); first += static_cast<size_t>(batch)) {
    Batch some;
    for (size_t i = first; i < std::min(windows.size(), first + static_cast<size_t>(batch)); ++i)
      some.push_back(&windows[i]);
    source.compute(some);
    for (size_t h = 0; h < heads.size(); ++h) {
      const std::vector<int64_t> targets = source.targets(some, heads[h].ahead);
      scores[h].add(
          run_head(heads[h], source.states(heads[h].source), targets, 0, teacher_of(source, heads[h])));
    }
  }
  return scores;
}

std::vector<HeadScore> train_heads(std::span<Head> heads, RowSource& source, const Windows& training,
                                   const Windows& validation, const TrainOptions& options,
                                   const TrainHooks& hooks) {
  return Training(heads, source, training, validation, options, hooks).run();
}

}  // namespace quern::calibrate::train
