#include "cli/speculation.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/files.h"
#include "cli/format.h"
#include "cli/self_speculation.h"
#include "formats/artifact/artifact.h"
#include "formats/file/checksum.h"
#include "runtime/speculate/datastore_drafter.h"
#include "runtime/speculate/medusa_drafter.h"
#include "runtime/speculate/medusa_heads.h"
#include "runtime/speculate/model_drafter.h"
#include "runtime/speculate/ngram_drafter.h"
#include "runtime/speculate/speculative_decoding.h"

namespace quern::cli {
namespace {

// Both must spell every token alike: a draft's ids are the model's ids.
void check_same_tokens(const LoadedModel& model, const LoadedModel& draft) {
  const std::string name = draft.file.path.string();
  if (!model.tokenizer || !draft.tokenizer) {
    if (model.program->traits().vocabulary == draft.program->traits().vocabulary) return;
    throw_error(ErrorCode::InvalidModel, "the draft '", name, "' has logits for ",
                draft.program->traits().vocabulary, " tokens, the model for ",
                model.program->traits().vocabulary,
                ", and without tokenizers nothing shows that they mean the same");
  }
  const int64_t count = std::min(model.tokenizer->vocab_size(), draft.tokenizer->vocab_size());
  for (int64_t id = 0; id < count; ++id) {
    const auto mine = model.tokenizer->token_of(id), other = draft.tokenizer->token_of(id);
    if (mine == other) continue;
    throw_error(ErrorCode::InvalidModel, "the draft '", name, "' has another tokenizer: its token ", id,
                " is '", one_line(other.value_or("")), "', the model's is '", one_line(mine.value_or("")),
                "'; a draft must share the model's tokens");
  }
}

runtime::PacingOptions pacing(const Arguments& arguments) {
  runtime::PacingOptions options;
  if (const auto length = arguments.integer("draft-length")) {
    options.adaptive = false;
    options.most = *length;
  }
  return options;
}

StrategyFactory with_draft(const Arguments& arguments, const LoadedModel& model, Console& console) {
  const std::optional<std::string> path = arguments.text("draft");
  if (!path) throw UsageError("--speculate draft needs --draft MODEL, a small model with the same tokenizer");
  const LoadedModel draft = load_decoder(*path, {}, console, "--draft");
  check_same_tokens(model, draft);
  runtime::ModelDrafterOptions options;
  options.rule = arguments.text_of("draft-rule") == "shared" ? runtime::DraftRule::Shared
                                                             : runtime::DraftRule::Rejection;
  options.vocabulary = model.program->traits().vocabulary;
  return [options, paced = pacing(arguments), program = draft.program](runtime::Session& session,
                                                                       runtime::Sampler& sampler) {
    runtime::ModelDrafterOptions own = options;
    own.sampling = sampler.options();
    own.session.team = session.team();
    return std::make_unique<runtime::SpeculativeDecoding>(
        session, sampler, std::make_unique<runtime::ModelDrafter>(program, own), paced);
  };
}

StrategyFactory with_datastore(const Arguments& arguments, const LoadedModel& model) {
  const std::optional<std::string> path = arguments.text("datastore");
  if (!path) throw UsageError("--speculate rest needs --datastore FILE, made by `quern datastore build`");
  const std::shared_ptr<const runtime::Datastore> store = runtime::Datastore::open(*path);
  if (!model.tokenizer || store->tokenizer() != tokenizer_identity(*model.tokenizer)) {
    throw_error(ErrorCode::BadData, "the datastore '", one_line(*path),
                "' holds tokens of another tokenizer than the model's; build it anew with --tokenizer '",
                model.file.path.string(), "'");
  }
  return [store, paced = pacing(arguments)](runtime::Session& session, runtime::Sampler& sampler) {
    return std::make_unique<runtime::SpeculativeDecoding>(
        session, sampler, std::make_unique<runtime::DatastoreDrafter>(store), paced);
  };
}

// What --tree says, else the tree that `quern tune-medusa` left in the artifact; without nodes: grown anew
// for each token.
runtime::MedusaTree medusa_tree(const Arguments& arguments, const LoadedModel& model) {
  const std::optional<std::string> given = arguments.text("tree");
  if (given == "grown") return {};
  if (given) {
    return with_context(concat("reading the tree '", one_line(*given), "'"), [&] {
      return runtime::MedusaTree::parse(given->starts_with("[") ? *given : read_input(*given));
    });
  }
  if (!model.file.is_artifact()) return {};
  const artifact::Artifact artifact = artifact::Artifact::open(model.file.path);
  const auto stored = artifact.attachment(runtime::kMedusaTreeAttachment);
  return stored ? runtime::MedusaTree::parse(std::string(*stored)) : runtime::MedusaTree();
}

StrategyFactory with_medusa(const Arguments& arguments, const LoadedModel& model) {
  if (runtime::count_medusa_heads(*model.file.graph) == 0) {
    throw_error(ErrorCode::InvalidArgument, "'", model.file.path.string(),
                "' has no Medusa heads; `quern convert --medusa-heads FILE` puts them in");
  }
  const runtime::MedusaTree tree = medusa_tree(arguments, model);
  runtime::PacingOptions paced = pacing(arguments);
  if (!tree.empty()) {
    if (arguments.given("draft-length"))
      throw UsageError(
          "--draft-length and a fixed --tree contradict each other; --tree grown takes a length");
    paced.most = static_cast<int64_t>(tree.size());
    paced.adaptive = !arguments.flag("whole-tree");
  } else if (arguments.flag("whole-tree")) {
    throw UsageError("--whole-tree needs a fixed tree: --tree FILE");
  }
  std::optional<runtime::TypicalAcceptance> typical;
  if (arguments.given("typical-acceptance")) {
    const double epsilon = *arguments.number("typical-acceptance");
    typical = runtime::TypicalAcceptance{.epsilon = epsilon, .delta = std::sqrt(epsilon)};
  }
  return [tree, paced, typical](runtime::Session& session, runtime::Sampler& sampler) {
    return std::make_unique<runtime::SpeculativeDecoding>(
        session, sampler, std::make_unique<runtime::MedusaDrafter>(session, tree), paced, typical);
  };
}

}  // namespace

std::string tokenizer_identity(const tokenizer::Tokenizer& tokenizer) {
  Sha256 digest;
  digest.update(tokenizer.to_bytes());
  return to_hex(digest.finish());
}

void declare_speculation_options(OptionSet& options) {
  options
      .choice("speculate", {"ngram", "draft", "rest", "medusa", "self"},
              "guess tokens and let the model verify them together; the text stays the same")
      .text("draft", "MODEL", "for draft: the small model that guesses; it must share the tokenizer")
      .text("datastore", "FILE", "for rest: texts to guess from, indexed by `quern datastore build`")
      .integer("draft-length", "N", {1, 256},
               "always guess N tokens; default: as many as pay, measured while decoding")
      .choice("draft-rule", {"shared", "rejection"},
              "for draft and self, where the text is sampled: guess with the model's own random numbers, "
              "which gives "
              "the text of plain sampling, or accept more by rejection sampling, which gives another text of "
              "the same distribution",
              "shared")
      .text("tree", "TREE",
            "for medusa: the guesses that are verified, a JSON list of paths such as [[0],[1],[0,0]], or a "
            "file "
            "with one; grown: as each token asks for; default: the one that `quern tune-medusa` put into the "
            "artifact, else grown")
      .flag("whole-tree", "for medusa: always verify the whole tree; default: the part that pays")
      .number(
          "typical-acceptance", "EPSILON", {0, 1},
          "for medusa: LOSSY, the text is no longer the model's own: accept what is typical of the model, "
          "p > min(E, sqrt(E) exp(-entropy)); 0.09 is usual");
  declare_self_speculation_options(options);
}

StrategyFactory speculation(const Arguments& arguments, const LoadedModel& model, Console& console) {
  const std::optional<std::string> kind = arguments.text("speculate");
  if (!kind) {
    for (const char* name :
         {"draft", "datastore", "draft-length", "tree", "whole-tree", "typical-acceptance", "draft-layers"}) {
      if (arguments.given(name)) throw UsageError(concat("--", name, " says nothing without --speculate"));
    }
    return {};
  }
  for (const auto& [option, wanted] :
       {std::pair{"draft", "draft"}, std::pair{"datastore", "rest"}, std::pair{"tree", "medusa"},
        std::pair{"whole-tree", "medusa"}, std::pair{"typical-acceptance", "medusa"},
        std::pair{"draft-layers", "self"}}) {
    if (arguments.given(option) && *kind != wanted)
      throw UsageError(concat("--", option, " needs --speculate ", wanted));
  }
  if (*kind == "draft") return with_draft(arguments, model, console);
  if (*kind == "rest") return with_datastore(arguments, model);
  if (*kind == "medusa") return with_medusa(arguments, model);
  if (*kind == "self") return with_self(arguments, pacing(arguments));
  return [paced = pacing(arguments)](runtime::Session& session, runtime::Sampler& sampler) {
    return std::make_unique<runtime::SpeculativeDecoding>(session, sampler,
                                                          std::make_unique<runtime::NgramDrafter>(), paced);
  };
}

nlohmann::ordered_json speculation_json(const runtime::SpeculationStatistics& statistics) {
  const double speedup = statistics.estimated_speedup();
  return {{"rounds", statistics.rounds},
          {"speculative_rounds", statistics.speculative_rounds},
          {"tokens", statistics.tokens},
          {"proposed", statistics.proposed},
          {"verified", statistics.verified},
          {"evaluated", statistics.evaluated},
          {"accepted", statistics.accepted},
          {"acceptance_rate", statistics.acceptance_rate()},
          {"tokens_per_round", statistics.tokens_per_round()},
          {"draft_share", statistics.draft_share()},
          {"estimated_speedup", speedup > 0 ? nlohmann::ordered_json(speedup) : nlohmann::ordered_json()}};
}

std::string speculation_text(const runtime::SpeculationStatistics& statistics) {
  std::string text = concat("speculation: ", format_fixed(statistics.tokens_per_round(), 2),
                            " tokens per run of the model, ", format_grouped(statistics.accepted), " of ",
                            format_grouped(statistics.verified), " guesses accepted");
  if (statistics.draft_share() >= 0.005)
    text += concat(", ", format_percent(statistics.draft_share(), 0), " of the time spent on guessing");
  if (statistics.estimated_speedup() > 0)
    text += concat("; about ", format_fixed(statistics.estimated_speedup(), 2), " times plain decoding");
  return text;
}

}  // namespace quern::cli
