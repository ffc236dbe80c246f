#include "calibrate/table.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "ir/error.h"
#include "ir/products.h"

namespace quern::calibrate {
namespace {

using nlohmann::ordered_json;

using Range = std::pair<int64_t, int64_t>;

std::string describe(const SampleOptions& samples) {
  return concat(samples.samples, " windows of ", samples.context, " tokens, seed ", samples.seed);
}

// With the range added; neighbours that touch become one.
std::vector<Range> joined(std::vector<Range> ranges, const Range& more) {
  if (more.first < more.second) ranges.push_back(more);
  std::sort(ranges.begin(), ranges.end());
  std::vector<Range> out;
  for (const Range& range : ranges) {
    if (!out.empty() && out.back().second == range.first) {
      out.back().second = range.second;
    } else {
      out.push_back(range);
    }
  }
  return out;
}

}  // namespace

bool CalibrationTable::is_complete() const {
  return seen == std::vector<Range>{{0, windows}};
}

std::vector<std::string> CalibrationTable::unreached() const {
  std::vector<std::string> names;
  for (const auto& [name, observer] : tensors) {
    if (observer.rows() == 0) names.push_back(name);
  }
  return names;
}

std::string CalibrationTable::to_text() const {
  ordered_json object = {{"quern_calibration", kVersion},
                         {"model", {{"digest", model_digest}}},
                         {"data",
                          {{"digest", data_digest},
                           {"samples", samples.samples},
                           {"context", samples.context},
                           {"seed", samples.seed}}},
                         {"windows", windows},
                         {"seen", seen},
                         {"complete", is_complete()},
                         {"unreached", unreached()},
                         {"tensors", ordered_json::array()}};
  for (const auto& [name, observer] : tensors) object["tensors"].push_back(observer.to_json(name));
  return object.dump(1) + "\n";
}

CalibrationTable CalibrationTable::parse(const std::string& text, const std::string& source) {
  const ordered_json object = ordered_json::parse(text, nullptr, false);
  if (!object.is_object() || !object.contains("quern_calibration")) {
    throw_error(ErrorCode::BadData, "'", source, "' is no calibration table: quern calibrate writes one");
  }
  CalibrationTable table;
  try {
    const int64_t version = object.at("quern_calibration").get<int64_t>();
    if (version > kVersion) {
      throw_error(ErrorCode::Unsupported, "'", source, "' is a calibration table of version ", version,
                  "; this quern reads up to ", kVersion);
    }
    table.model_digest = object.at("model").at("digest").get<std::string>();
    const ordered_json& data = object.at("data");
    table.data_digest = data.at("digest").get<std::string>();
    table.samples = {.samples = data.at("samples").get<int64_t>(),
                     .context = data.at("context").get<int64_t>(),
                     .seed = data.at("seed").get<int64_t>()};
    table.windows = object.at("windows").get<int64_t>();
    table.seen = object.at("seen").get<std::vector<Range>>();
    for (const ordered_json& tensor : object.at("tensors")) {
      const std::string name = tensor.at("name").get<std::string>();
      table.tensors[name] = Observer::from_json(tensor, concat("'", source, "', tensor '", name, "'"));
    }
  } catch (const nlohmann::json::exception& error) {
    throw_error(ErrorCode::BadData, "'", source, "' is no whole calibration table: ", error.what());
  }
  return table;
}

void CalibrationTable::merge(const CalibrationTable& other) {
  check_model(other.model_digest, "the other table");
  const auto same_samples = [&] {
    return samples.samples == other.samples.samples && samples.context == other.samples.context &&
           samples.seed == other.samples.seed && windows == other.windows;
  };
  if (data_digest != other.data_digest || !same_samples()) {
    throw_error(ErrorCode::InvalidArgument, "the tables are of different samples: ", describe(samples),
                " of data ", data_digest, ", and ", describe(other.samples), " of data ", other.data_digest);
  }
  for (const Range& mine : seen) {
    for (const Range& theirs : other.seen) {
      if (mine.first < theirs.second && theirs.first < mine.second) {
        throw_error(ErrorCode::InvalidArgument, "both tables have seen windows ",
                    std::max(mine.first, theirs.first), " to ", std::min(mine.second, theirs.second) - 1);
      }
    }
  }
  // Moving averages go by the order of windows.
  const bool other_first = !other.seen.empty() && (seen.empty() || other.seen.front() < seen.front());
  for (const auto& [name, observer] : other.tensors) {
    Observer& own = tensors[name];
    if (!other_first) {
      own.append(observer);
      continue;
    }
    Observer both = observer;
    both.append(own);
    own = std::move(both);
  }
  for (const Range& range : other.seen) seen = joined(std::move(seen), range);
}

void CalibrationTable::check_model(const std::string& digest, const std::string& source) const {
  if (digest == model_digest) return;
  throw_error(ErrorCode::InvalidArgument, "the calibration table was made of a model with SHA-256 ",
              model_digest, ", not of ", source, " (", digest, "); calibrate that one");
}

std::vector<std::string> product_inputs(const Graph& graph) {
  std::vector<std::string> names;
  std::set<const Value*> known;
  for (const Node* node : graph.nodes()) {
    if (!is_product(*node) || !known.insert(node->input(0)).second) continue;
    names.push_back(node->input(0)->name());
  }
  return names;
}

void observe(const Graph& graph, const Samples& samples, const TableRun& run, CalibrationTable& table) {
  const std::vector<std::string> taps = product_inputs(graph);
  for (const std::string& name : taps) table.tensors[name];
  ActivationRunner runner(graph, taps, runner_options(samples, run.threads));
  const auto is_seen = [&](int64_t window) {
    return std::any_of(table.seen.begin(), table.seen.end(),
                       [&](const Range& range) { return range.first <= window && window < range.second; });
  };
  for (int64_t i = run.range.first; i < run.range.second; ++i) {
    if (!is_seen(i)) {
      runner.run(samples, i, [&](const ActivationRows& rows) { table.tensors[taps[rows.tap]].add(rows); });
      table.seen = joined(std::move(table.seen), {i, i + 1});
    }
    if (run.progress) run.progress(i + 1 - run.range.first, run.range.second - run.range.first);
  }
}

}  // namespace quern::calibrate
