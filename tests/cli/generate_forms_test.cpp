// Texts beyond the context, decoders side by side, and outlines through the program.
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/cpu/thread_team.h"
#include "tests/cli/quern_binary.h"
#include "tests/support/temp_dir.h"

namespace quern::test {
namespace {

using nlohmann::json;

class GenerateForms : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = new TempDir();
    artifact_ = (*dir_ / "m.quern").string();
    const ProgramResult result = quern(
        {"convert", example("model.onnx"), "-o", artifact_, "--weights", "int8", "--exit-heads", "1", "-q"});
    ASSERT_EQ(result.status, 0) << result.err;
    write_text(prompts(),
               "\"It was a dark night\"\n\"The old man said\"\n\"She went to\"\n{\"ids\": [5, 6, 7]}\n"
               "\"It was a dark night, and\"\n");
    write_text(file("points.txt"), "1. The sea\n\n  The night  \n- A ship\n");
    // Nothing but what the user says.
    write_text(file("chat.jinja"), "{{ messages[-1].content }}");
  }
  static void TearDownTestSuite() { delete dir_; }
  static std::string file(const std::string& name) { return (*dir_ / name).string(); }
  static std::string prompts() { return file("prompts.jsonl"); }

  static json generate(std::vector<std::string> more, int status = 0) {
    more.insert(more.begin(), {"generate", artifact_, "-q"});
    return quern_json(more, status);
  }
  static json one(std::vector<std::string> more) {
    more.insert(more.begin(), {"-p", "It was a dark night", "-n", "150"});
    return generate(more);
  }

  static inline TempDir* dir_ = nullptr;
  static inline std::string artifact_;
};

TEST_F(GenerateForms, ContextShiftGoesOn) {
  const json ended = one({"--context", "40"}), shifted = one({"--context", "40", "--context-shift"});
  EXPECT_EQ(ended["finish_reason"], "context");
  EXPECT_FALSE(ended.contains("context_shift"));
  EXPECT_EQ(shifted["finish_reason"], "length");
  EXPECT_EQ(shifted["ids"].size(), 150U);
  EXPECT_TRUE(std::equal(ended["ids"].begin(), ended["ids"].end(), shifted["ids"].begin()));
  const json& shift = shifted["context_shift"];
  EXPECT_EQ(shift["keep"], 4);
  EXPECT_EQ(shift["dropped_tokens"], 18);
  EXPECT_EQ(shift["way"], "move");
  EXPECT_EQ(shift["reason"], nullptr);
  const auto computed = static_cast<int>(shifted["prompt_ids"].size()) + 149;
  EXPECT_EQ(shift["shifts"].get<int>(), (computed - 40 + 17) / 18);
  // A context that is large enough is never shifted.
  const json large = one({"--context", "400", "--context-shift"});
  EXPECT_EQ(large["context_shift"]["shifts"], 0);
  EXPECT_EQ(large["ids"], one({})["ids"]);
  const json codes = one({"--context", "40", "--context-shift", "--kv", "int8", "--keep", "0"});
  EXPECT_EQ(codes["context_shift"]["way"], "recompute");
  EXPECT_NE(codes["context_shift"]["reason"].get<std::string>().find("i8"), std::string::npos);
  EXPECT_EQ(codes["ids"].size(), 150U);
}

TEST_F(GenerateForms, ContextShiftIsTheSameHoweverItIsDecoded) {
  const json plain = one({"--context", "40", "--context-shift"});
  EXPECT_EQ(one({"--context", "40", "--context-shift", "--speculate", "ngram", "--draft-length", "4"})["ids"],
            plain["ids"]);
  EXPECT_EQ(
      one({"--context", "40", "--context-shift", "--speculate", "self", "--draft-layers", "exit:1"})["ids"],
      plain["ids"]);
  EXPECT_EQ(one({"--context", "40", "--context-shift", "--exit", "margin:1"})["ids"], plain["ids"]);
  const json many = generate({"--prompts", prompts(), "-n", "150", "--context", "40", "--context-shift"});
  EXPECT_EQ(many["results"][0]["ids"], plain["ids"]);
  EXPECT_EQ(many["results"][0]["context_shifts"], plain["context_shift"]["shifts"]);
  // A prompt that does not fit.
  std::string long_prompt;
  for (int i = 0; i < 30; ++i) long_prompt += "It was a dark night. ";
  expect_refused(quern({"generate", artifact_, "-p", long_prompt, "--context", "40", "-q"}), 3,
                 {"context of 40"});
  EXPECT_GT(generate({"-p", long_prompt, "-n", "5", "--context", "40",
                      "--context-shift"})["context_shift"]["shifts"],
            5);
}

TEST_F(GenerateForms, ContextShiftSaysWhatItDid) {
  const ProgramResult result = quern({"generate", artifact_, "-p", "It was", "-n", "100", "--context", "40",
                                      "--context-shift", "--ignore-eos"});
  EXPECT_EQ(result.status, 0);
  EXPECT_NE(result.err.find("context shifts: 4 first tokens stayed, 18 were forgotten"), std::string::npos)
      << result.err;
  const auto refused = [&](std::vector<std::string> more, const std::vector<std::string>& parts) {
    more.insert(more.begin(), {"generate", artifact_, "-p", "x", "-q"});
    expect_refused(quern(more), 2, parts);
  };
  refused({"--keep", "3"}, {"--keep", "--context-shift"});
  refused({"--context", "40", "--context-shift", "--keep", "39"}, {"context of 40"});
  refused({"--context-shift", "--speculate", "self", "--draft-rule", "rejection"},
          {"--draft-rule rejection"});
}

TEST_F(GenerateForms, InstancesGiveTheTextsOfOne) {
  if (cpu::default_thread_count() < 2) GTEST_SKIP() << "needs two cores";
  for (const std::vector<std::string>& how : std::vector<std::vector<std::string>>{
           {}, {"--temperature", "1", "--seed", "3"}, {"--speculate", "ngram"}, {"--exit", "margin:0.2"}}) {
    std::vector<std::string> words = {"--prompts", prompts(), "-n", "20", "--parallel", "2"};
    words.insert(words.end(), how.begin(), how.end());
    const json single = generate(words);
    words.insert(words.end(), {"--instances", "2"});
    const json apart = generate(words);
    EXPECT_EQ(apart["results"], single["results"]);
    EXPECT_EQ(apart["timing"]["instances"], 2);
    EXPECT_GE(apart["timing"]["threads"].get<int>(), 2);
    EXPECT_EQ(apart["timing"]["generated_tokens"], single["timing"]["generated_tokens"]);
    EXPECT_EQ(apart.contains("prefix_cache"), single.contains("prefix_cache"));
    if (apart.contains("exits")) {
      EXPECT_EQ(apart["exits"], single["exits"]);
    }
  }
  // Lines come in any order, whole.
  const ProgramResult lines =
      quern({"generate", artifact_, "--prompts", prompts(), "-n", "4", "-q", "--instances", "2"});
  EXPECT_EQ(lines.status, 0);
  EXPECT_EQ(std::count(lines.out.begin(), lines.out.end(), '\n'), 5);
}

TEST_F(GenerateForms, InstancesRefuseWhatDoesNotFit) {
  expect_refused(quern({"generate", artifact_, "-p", "x", "--instances", "2", "-q"}), 2, {"--prompts"});
  const std::string more = std::to_string(cpu::default_thread_count() + 1);
  expect_refused(quern({"generate", artifact_, "--prompts", prompts(), "--instances", more, "-q"}), 2,
                 {more + " instances", "cores"});
  write_text(file("bad.jsonl"), "\"fine\"\n{\"ids\": [99999]}\n\"fine\"\n");
  expect_refused(quern({"generate", artifact_, "--prompts", file("bad.jsonl"), "--instances", "1", "--json"}),
                 3, {"99999"});
}

TEST_F(GenerateForms, PointsOfAnOutlineGoOnAsEachAlone) {
  const std::string question = "The captain's tale has three parts.";
  const json all = generate({"-p", question, "--outline-file", file("points.txt"), "-n", "15"});
  EXPECT_EQ(all["outline"]["points"], (std::vector<std::string>{"The sea", "The night", "A ship"}));
  EXPECT_EQ(all["outline"]["text"], nullptr);
  std::string text;
  for (const json& point : all["results"]) {
    const std::string heading = point["heading"];
    const json alone = generate({"-p", question + "\n" + heading, "-n", "15"});
    EXPECT_EQ(point["ids"], alone["ids"]) << heading;
    EXPECT_EQ(point["prompt_ids"], alone["prompt_ids"]) << heading;
    EXPECT_EQ(point["text"], alone["text"]);
    text += (text.empty() ? "" : "\n\n") + heading + point["text"].get<std::string>();
  }
  EXPECT_EQ(all["text"], text);
  // All three found what they begin with.
  const json& timing = all["timing"];
  EXPECT_GT(timing["prefix_tokens"].get<int>(), 5);
  EXPECT_EQ(timing["cached_tokens"].get<int>(), 3 * timing["prefix_tokens"].get<int>());
  EXPECT_EQ(generate({"-p", question, "--outline-file", file("points.txt"), "-n", "15", "--speculate",
                      "ngram"})["text"],
            all["text"]);
  const ProgramResult printed =
      quern({"generate", artifact_, "-p", question, "--outline-file", file("points.txt"), "-n", "15"});
  EXPECT_EQ(printed.out, question + "\n\n" + text + "\n");
  EXPECT_NE(printed.err.find("3 points side by side"), std::string::npos) << printed.err;
}

TEST_F(GenerateForms, AnOutlineIsAskedForInTheChatTemplate) {
  const json given = generate(
      {"-p", "Why?", "--outline-file", file("points.txt"), "--chat-template", file("chat.jinja"), "-n", "8"});
  ASSERT_EQ(given["results"].size(), 3U);
  EXPECT_EQ(given["results"][1]["heading"], "2. The night");
  const json ids = given["results"][1]["prompt_ids"];
  std::string words;
  for (const json& id : ids) words += id.dump() + ",";
  const std::string prompt = quern_json({"tokenize", artifact_, "--decode", words})["text"];
  EXPECT_NE(prompt.find("Question: Why?"), std::string::npos) << prompt;
  EXPECT_NE(prompt.find("1. The sea\n2. The night\n3. A ship\n"), std::string::npos) << prompt;
  EXPECT_TRUE(prompt.ends_with("Your point is number 2.2. The night")) << prompt;
  // All of it up to the number is shared.
  EXPECT_GT(given["timing"]["prefix_tokens"].get<int>(), 80);
  EXPECT_EQ(given["timing"]["cached_tokens"].get<int>(), 3 * given["timing"]["prefix_tokens"].get<int>());
  // What such a model says is no matter, but it is what it says by itself.
  write_text(file("points_asked.jinja"), "{% if 'Outline:' in messages[-1].content %}A list:\n{% endif %}");
  const json asked =
      generate({"-p", "Why?", "--outline", "--chat-template", file("points_asked.jinja"), "-n", "8"});
  EXPECT_EQ(asked["outline"]["ids"], generate({"-p", "A list:\n1.", "-n", "8"})["ids"]);
  EXPECT_EQ(asked["results"].size(), asked["outline"]["points"].size());
}

TEST_F(GenerateForms, OutlinesRefuseWhatTheyDoNotTake) {
  const auto refused = [&](std::vector<std::string> more, int status, const std::vector<std::string>& parts) {
    more.insert(more.begin(), {"generate", artifact_, "-q"});
    expect_refused(quern(more), status, parts);
  };
  refused({"--outline", "-p", "Why?"}, 3, {"no chat template"});
  refused({"--outline", "--prompts", prompts()}, 2, {"--outline"});
  refused({"--outline", "--ids", "1,2"}, 2, {"--ids"});
  refused({"--outline", "-p", "x", "--exit", "margin:1"}, 2, {"--exit", "--outline"});
  write_text(file("empty.txt"), "\n  \n");
  refused({"--outline-file", file("empty.txt"), "-p", "x"}, 3, {"empty.txt", "no point"});
  std::string many;
  for (int i = 0; i < 65; ++i) many += "point\n";
  write_text(file("many.txt"), many);
  refused({"--outline-file", file("many.txt"), "-p", "x"}, 3, {"65 points"});
}

TEST_F(GenerateForms, MemoryAndAgeOfPrefixes) {
  std::string lines;
  for (const char* end : {"He", "She", "They", "It", "We", "You"})
    lines += "\"It was the best of times, it was the worst of times, it was the age of wisdom. " +
             std::string(end) + "\"\n";
  write_text(file("alike.jsonl"), lines);
  const json free = generate({"--prompts", file("alike.jsonl"), "-n", "30"});
  // A megabyte holds three blocks of the eight layers, not six texts.
  for (const char* parallel : {"1", "4", "8"}) {
    const json small = generate({"--prompts", file("alike.jsonl"), "-n", "30", "--parallel", parallel,
                                 "--cache-memory", "1", "--cache-ttl", "1000"});
    EXPECT_EQ(small["results"], free["results"]) << parallel;
    EXPECT_GT(small["prefix_cache"]["evicted"].get<int>() + small["timing"]["put_back"].get<int>(), 0)
        << parallel;
  }
  const json aged =
      generate({"--prompts", file("alike.jsonl"), "-n", "30", "--parallel", "1", "--cache-ttl", "0.001"});
  EXPECT_EQ(aged["results"], free["results"]);
  EXPECT_GT(aged["prefix_cache"]["expired"].get<int>(), 0);
  expect_refused(quern({"generate", artifact_, "--prompts", file("alike.jsonl"), "-n", "300", "--ignore-eos",
                        "--cache-memory", "1", "-q", "--json"}),
                 5, {"cache memory"});
}

// --- bench ---

TEST_F(GenerateForms, BenchShowsWhatExitsGain) {
  const std::vector<std::string> words = {
      "bench", artifact_, "--text", example("heldout.txt"), "--prompts", "2", "-p", "16", "-n", "12",
      "-r",    "1",       "--exit"};
  const auto bench = [&](const std::string& rule) {
    std::vector<std::string> all = words;
    all.push_back(rule);
    return quern_json(all);
  };
  const json deep = bench("margin:1"), flat = bench("fixed:1");
  EXPECT_EQ(deep["exit"], "margin:1.000");
  EXPECT_TRUE(deep["identical"].get<bool>());
  EXPECT_EQ(deep["agreement"], 1.0);
  EXPECT_EQ(deep["exiting"]["average_layers"], deep["exiting"]["layers"]);
  EXPECT_EQ(flat["exiting"]["average_layers"].get<double>(), 1);
  EXPECT_EQ(flat["exiting"]["tokens"], flat["exiting"]["exits"][0]["tokens"]);
  for (const json& result : {deep, flat}) {
    EXPECT_GT(result["plain"]["tokens_per_second"].get<double>(), 0);
    EXPECT_GT(result["exiting"]["tokens_per_second"].get<double>(), 0);
    EXPECT_GT(result["speedup"].get<double>(), 0);
  }
  std::vector<std::string> both = words;
  both.insert(both.end(), {"margin:1", "--speculate", "ngram"});
  expect_refused(quern(both), 2, {"--exit", "--speculate"});
  std::vector<std::string> text = words;
  text.push_back("fixed:1");
  EXPECT_NE(quern(text).out.find("of 8 layers on average"), std::string::npos) << quern(text).out;
}

TEST_F(GenerateForms, BenchComparesInstancesWithABatch) {
  std::vector<std::string> words = {"bench",      artifact_, "--text",      example("heldout.txt"),
                                    "--prompts",  "6",       "-p",          "16",
                                    "-n",         "12",      "-r",          "1",
                                    "-t",         "1",       "--instances", "1",
                                    "--parallel", "2"};
  const json result = quern_json(words);
  EXPECT_TRUE(result["identical"].get<bool>());
  EXPECT_EQ(result["one"]["tokens"], 6 * 12);
  EXPECT_EQ(result["one"]["parallel"], 2);
  EXPECT_EQ(result["instances"]["tokens"], 6 * 12);
  EXPECT_EQ(result["instances"]["instances"], 1);
  EXPECT_GT(result["ratio"].get<double>(), 0);
  words[words.size() - 3] = "2";
  expect_refused(quern(words), 2, {"--instances 2", "1 threads"});
}

}  // namespace
}  // namespace quern::test
