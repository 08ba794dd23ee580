// Questions, the answers found in replies, and the confidence interval of an accuracy.
#include "client/question_set.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "client/eval_server.h"
#include "client/table_file.h"

namespace sluice {
namespace {

std::string file_of(const std::string& name, const std::string& text) {
  const std::string path = ::testing::TempDir() + "/sluice_" + name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

TEST(Gsm8k, WhatIsRead) {
  struct Case {
    const char *answer, *strict, *flexible;
  };
  // Expected values are those of the task's two patterns in Python's re.
  const Case cases[] = {
      {"5 + 3 = 8\n#### 8", "8", "8"},
      {"#### 1,234.", "1,234.", "1,234."},
      {"#### -7", "-7", "-7"},
      {"#### 5 or #### 6", "5", "6"},
      {"####5", kNoAnswer, "5"},
      {"#### x #### 3", "3", "3"},
      {"It costs $18.", kNoAnswer, "$18."},
      {"It costs -$18", kNoAnswer, "-$18"},
      {"from 10 to 7", kNoAnswer, "7"},
      {"10-7", kNoAnswer, "-7"},
      {"a - b", kNoAnswer, kNoAnswer},
      {"12. Then more", kNoAnswer, "12."},
      {"one, two, 3, four...", kNoAnswer, "..."},
      {"", kNoAnswer, kNoAnswer},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(strict_number(c.answer), c.strict) << c.answer;
    EXPECT_EQ(flexible_number(c.answer), c.flexible) << c.answer;
  }
  const std::string wanted = "Two each.\n#### 1,234";
  for (const char* same : {"1234", "$1,234", "1234.", "1,234"})
    EXPECT_TRUE(same_number(wanted, same)) << same;
  for (const char* other : {"1234.0", "123", "-1234", kNoAnswer})
    EXPECT_FALSE(same_number(wanted, other)) << other;
}

std::string gsm8k_line(int i) {
  const std::string n = std::to_string(i);
  return R"({"question": "Q)" + n + R"(?", "answer": "W)" + n + R"(\n#### )" + n + "\"}\n";
}

TEST(Gsm8k, PromptOfWorkedExamples) {
  std::string lines, train;
  for (int i = 0; i < 4; ++i) lines += gsm8k_line(i), train += gsm8k_line(10 + i);
  const std::string path = file_of("gsm8k.jsonl", lines), shots = file_of("train.jsonl", train);
  const auto own = open_gsm8k({.path = path, .shots = 2});
  ASSERT_TRUE(own.ok()) << own.status().message;
  const auto prompts = own.value()->prompts(0);
  ASSERT_EQ(prompts.size(), 2u) << "worked examples are not asked as questions";
  EXPECT_EQ(prompts[0].question, 2);
  EXPECT_EQ(
      prompts[0].text,
      "Question: Q0?\nAnswer: W0\n#### 0\n\nQuestion: Q1?\nAnswer: W1\n#### 1\n\nQuestion: Q2?\nAnswer:");
  EXPECT_TRUE(own.value()->grade(prompts[0], "so\n#### 2").strict);
  const Grade flexible = own.value()->grade(prompts[0], "so 2");
  EXPECT_FALSE(flexible.strict);
  EXPECT_TRUE(flexible.flexible);
  EXPECT_EQ(flexible.found, "2");
  const auto trained = open_gsm8k({.path = path, .shots_path = shots, .shots = 1, .limit = 3});
  EXPECT_EQ(trained.value()->prompts(0).size(), 3u);
  EXPECT_EQ(trained.value()->prompts(0)[0].text,
            "Question: Q10?\nAnswer: W10\n#### 10\n\nQuestion: Q0?\nAnswer:");
  EXPECT_NE(open_gsm8k({.path = path, .shots = 4}).status().message.find("wanted 4 worked examples"),
            std::string::npos);
  const std::string bad = file_of("bad.jsonl", gsm8k_line(1) + R"({"question": "Q", "answer": "7"})");
  EXPECT_NE(
      open_gsm8k({.path = bad, .shots = 0}).status().message.find("line 2: wanted an answer with '#### '"),
      std::string::npos);
}

TEST(Gpqa, WhatIsRead) {
  struct Case {
    const char *answer, *strict, *flexible;
  };
  const Case cases[] = {
      {"Think.\nAnswer: B", "B", "B"},
      {"answer : c", "C", "C"},
      {"**Answer: (D)**", "D", "D"},
      {"**Answer:** A", "A", "A"},
      {"Answer: $B$", "B", "B"},
      {"Answer: A, no: Answer: C", "C", "C"},
      {"The answer is (B).", kNoAnswer, "B"},
      {"(A) or (C)", kNoAnswer, "C"},
      {"Answer: Because", kNoAnswer, kNoAnswer},
      {"Answer: E", kNoAnswer, kNoAnswer},
      {"(E) B", kNoAnswer, kNoAnswer},
      {"(", kNoAnswer, kNoAnswer},
      {"", kNoAnswer, kNoAnswer},
      {"Answer:", kNoAnswer, kNoAnswer},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(strict_choice(c.answer), c.strict) << c.answer;
    EXPECT_EQ(flexible_choice(c.answer), c.flexible) << c.answer;
  }
}

const std::string kGpqaCsv =
    "\xef\xbb\xbfSubdomain,Question,Correct Answer,Incorrect Answer 1,Incorrect Answer 2,Incorrect Answer "
    "3\r\n"
    "x,\"Which, of \"\"these\"\"?\nSay.\",right,\" w1\n\",w2,w3\r\n"
    "y,Second?,right,w1,w2,w3\r\n";

TEST(Gpqa, OptionsAreShuffled) {
  const std::string path = file_of("gpqa.csv", kGpqaCsv);
  const auto set = open_gpqa({.path = path, .seed = 7});
  ASSERT_TRUE(set.ok()) << set.status().message;
  std::set<std::string> letters, orders;
  for (int64_t repeat = 0; repeat < 50; ++repeat) {
    const auto prompts = set.value()->prompts(repeat);
    ASSERT_EQ(prompts.size(), 2u);
    const EvalPrompt& p = prompts[0];
    EXPECT_NE(p.text.find("Which, of \"these\"?\nSay.\n\nA) "), std::string::npos) << p.text;
    EXPECT_NE(p.text.find("\n" + p.wanted + ") right"), std::string::npos) << p.text;
    for (const char* option : {") w1", ") w2", ") w3"})
      EXPECT_NE(p.text.find(option), std::string::npos) << p.text;
    letters.insert(p.wanted);
    orders.insert(p.text);
    EXPECT_TRUE(set.value()->grade(p, "Answer: " + p.wanted).strict);
    EXPECT_EQ(open_gpqa({.path = path, .seed = 7}).value()->prompts(repeat)[0].text, p.text)
        << "the same options in a second call";
  }
  EXPECT_EQ(letters.size(), 4u);
  EXPECT_GT(orders.size(), 15u) << "of 24 possible orders";
  EXPECT_EQ(open_gpqa({.path = path, .limit = 1}).value()->prompts(0).size(), 1u);
}

TEST(TableFile, Errors) {
  constexpr std::string_view kColumns[] = {"a", "b"};
  const auto error = [&](const std::string& name, const std::string& text) {
    return read_table(file_of(name, text), kColumns).status().message;
  };
  EXPECT_NE(error("t.csv", "a,c\n1,2\n").find("wanted a column 'b', found none"), std::string::npos);
  EXPECT_NE(error("t.csv", "a,b\n1,2\n3\n").find("line 3: wanted 2 cells, found 1"), std::string::npos);
  EXPECT_NE(error("t.csv", "a,b\n1,\"2\n").find("line 2: wanted a closing quote"), std::string::npos);
  EXPECT_NE(error("t.csv", "a,b\n").find("wanted at least one row"), std::string::npos);
  EXPECT_NE(error("t.jsonl", "{\"a\": \"x\"}\n").find("line 1"), std::string::npos);
  EXPECT_NE(error("t.jsonl", "\n\n").find("wanted at least one row"), std::string::npos);
}

TEST(Accuracy, Wilson) {
  // Computed by hand from the formula; 0 of 10 and 10 of 10 mirror each other.
  EXPECT_NEAR(wilson(8, 10).low, 0.490162, 1e-6);
  EXPECT_NEAR(wilson(8, 10).high, 0.943318, 1e-6);
  EXPECT_NEAR(wilson(0, 10).high, 0.277533, 1e-6);
  EXPECT_NEAR(wilson(0, 10).low, 0, 1e-12);
  EXPECT_NEAR(wilson(10, 10).low, 1 - 0.277533, 1e-6);
  EXPECT_EQ(wilson(0, 0).high, 1);
}

TEST(Accuracy, SignTest) {
  EXPECT_DOUBLE_EQ(sign_test(0, 0), 1);
  EXPECT_DOUBLE_EQ(sign_test(5, 5), 1);
  EXPECT_NEAR(sign_test(0, 5), 2.0 / 32, 1e-12);
  EXPECT_NEAR(sign_test(1, 9), 2 * 11.0 / 1024, 1e-12);
  EXPECT_NEAR(sign_test(9, 1), sign_test(1, 9), 1e-15);
  EXPECT_LT(sign_test(400, 600), 1e-9);
}

// `right[r]` marks the questions that repeat r answered correctly.
ServerEval eval_of(const std::vector<std::string>& right, const std::string& model) {
  ServerEval out{.server = "http://h:1", .model = model, .task = "gpqa", .repeat = std::ssize(right)};
  for (int64_t r = 0; r < out.repeat; ++r)
    for (int64_t q = 0; q < std::ssize(right[0]); ++q) {
      const bool yes = right[static_cast<size_t>(r)][static_cast<size_t>(q)] == '1';
      out.answers.push_back({q, r, "gpqa", "A", "text", {yes, yes, "A"}, ""});
    }
  return out;
}

TEST(ServerEval, ScoresOfRepeats) {
  const ServerEval eval = eval_of({"1100", "1000"}, "m");
  const Score s = score_of(eval.answers, &Grade::strict, 2);
  EXPECT_EQ(s.questions, 4);
  EXPECT_DOUBLE_EQ(s.right, 1.5);
  EXPECT_EQ(s.repeats, (std::vector<double>{0.5, 0.25}));
  EXPECT_DOUBLE_EQ(s.interval.low, wilson(1.5, 4).low);
  const std::string text = server_eval_text(eval);
  EXPECT_NE(text.find("gpqa           flexible        1.5         4     37.5%"), std::string::npos) << text;
  EXPECT_NE(text.find("of 2 repeats 25.0% to 50.0%, deviation 17.7%"), std::string::npos) << text;
}

TEST(ServerEval, TwoAreCompared) {
  const auto path = [](const char* name, const ServerEval& eval) {
    return file_of(name, server_eval_json(eval));
  };
  const std::string a = path("a.json", eval_of({"1111100000", "1111110000"}, "first"));
  const std::string b = path("b.json", eval_of({"1111111110", "1111111110"}, "second"));
  const auto c = compare_evals(a, b);
  ASSERT_TRUE(c.ok()) << c.status().message;
  EXPECT_EQ(c.value().questions, 10);
  EXPECT_EQ(c.value().better_b, 4);
  EXPECT_EQ(c.value().better_a, 0);
  EXPECT_DOUBLE_EQ(c.value().accuracy_a, 0.55);
  EXPECT_DOUBLE_EQ(c.value().accuracy_b, 0.9);
  EXPECT_DOUBLE_EQ(c.value().p, 0.125);
  EXPECT_LT(c.value().difference.low, 0.35);
  EXPECT_GT(c.value().difference.high, 0.35);
  EXPECT_EQ(compare_evals(a, a).value().p, 1);
  EXPECT_NE(comparison_text(c.value()).find("p           0.1250"), std::string::npos);
  const std::string other = path("c.json", eval_of({"11111"}, "third"));
  EXPECT_NE(
      compare_evals(a, other).status().message.find("wanted the questions, the seed and the repeats of"),
      std::string::npos);
}

}  // namespace
}  // namespace sluice
