"""`sluice run` as people and scripts use it: a terminal with its keys, files, pipes, stop strings."""
import json
import os
import pty
import re
import select
import signal
import subprocess
import tempfile
import time
import unittest

COMMAND = os.environ["SLUICE_COMMAND"]
WATCHDOG = 120  # seconds after which something hangs; nothing here measures time
QUESTION = "What is 417 + 268?"


def run(*words, text=""):
    return subprocess.run([COMMAND, "run", "-q", *words], input=text, capture_output=True, text=True, timeout=WATCHDOG)


class Terminal:
    """A conversation on a terminal of its own."""

    def __init__(self, *words, **environment):
        self.shown = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update({"TERM": "xterm", "HOME": "/nonexistent", **environment})
            os.execv(COMMAND, [COMMAND, "run", "-q", "--hide-reasoning", *words])
        self.expect("> ")

    def send(self, keys):
        os.write(self.fd, keys.encode())

    def expect(self, pattern):
        """Reads until `pattern` is shown; what stood before its end. Colours and moves of the cursor count as nothing."""
        end = time.monotonic() + WATCHDOG
        while True:
            plain = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\x07", b"", self.shown).decode(errors="replace")
            if found := re.search(pattern, plain, re.DOTALL):
                self.shown = plain[found.end():].encode()
                return plain[:found.end()]
            if not select.select([self.fd], [], [], max(0, end - time.monotonic()))[0]:
                raise AssertionError(f"waited {WATCHDOG} s for {pattern!r}, found {plain!r}")
            self.shown += self.read()

    def read(self):
        try:
            return os.read(self.fd, 65536)
        except OSError:  # the other side is closed
            return b""

    def ask(self, keys, answer):
        self.send(keys)
        return self.expect(r"\r?\n" + answer + r"\r?\n.*> ")

    def status(self):
        while select.select([self.fd], [], [], WATCHDOG)[0] and self.read():
            pass
        os.close(self.fd)
        return os.waitpid(self.pid, 0)[1]


class OnATerminal(unittest.TestCase):
    def test_editing_and_history(self):
        t = Terminal()
        t.ask("What is 1 + 1?\r", "2")
        t.ask("What is 2 + 3?\x1b[D\x7f2\r", "4")  # left, backspace: 2 + 2
        t.ask("\x1b[A\x1b[A\r", "2")  # the one before the last
        t.ask("at is 3 + 3?\x1b[HWh\r", "6")  # Home
        t.ask("xWhat is 4 + 4?\x01\x1b[3~\r", "8")  # the beginning of the line, Delete
        t.ask("\x12+ 3\r", "6")  # Ctrl-R
        t.send("\x04")  # Ctrl-D
        self.assertEqual(t.status(), 0)

    def test_letters_of_any_language_stay_whole(self):
        for locale in ("C", "C.UTF-8"):
            t = Terminal(LC_ALL=locale, LANG=locale)
            t.ask("Reverse the word é\x7fpot.\r", "top")  # one backspace takes both bytes
            t.send("/exit\r")
            self.assertEqual(t.status(), 0)

    def test_words_to_the_program(self):
        t = Terminal()
        t.send("/help\r")
        t.expect(r"/new .*/exit .*Ctrl-C.*> ")
        t.send("/nwe\r")
        t.expect("unknown command '/nwe'; did you mean '/new'.*> ")
        t.ask("What is 1 + 1?\r", "2")
        t.send("/exit\r")
        self.assertEqual(t.status(), 0)

    def test_ctrl_c_stops_an_answer_and_then_the_program(self):
        t = Terminal("--ignore-eos", "-n", "3900")
        t.send(QUESTION + "\r")
        t.expect("685")
        t.send("\x03")
        t.expect(r"\n> ")
        t.send("What is 1")
        t.expect("What is 1")
        before = subprocess.run(["stty", "-a"], stdin=t.fd, capture_output=True, text=True, check=True).stdout
        self.assertIn("-icanon", before)
        # libedit's own handler puts the terminal back, and then the program ends as any does.
        os.kill(t.pid, signal.SIGINT)
        self.assertEqual(os.WTERMSIG(os.waitpid(t.pid, 0)[1]), signal.SIGINT)
        after = subprocess.run(["stty", "-a"], stdin=t.fd, capture_output=True, text=True, check=True).stdout
        self.assertIn(" icanon", after)
        os.close(t.fd)


class InScripts(unittest.TestCase):
    def test_questions_from_files_and_pipes(self):
        want = run("-p", QUESTION).stdout
        self.assertEqual(want, "685\n")
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(QUESTION + "\n")
            file.flush()
            self.assertEqual(run("-f", file.name).stdout, want)
            both = run("-f", file.name, "-p", "x")
            self.assertEqual((both.returncode, both.stdout), (2, ""))
        self.assertEqual(run("-p", "-", text=QUESTION + "\n").stdout, want)
        lines = "Sort these numbers:\n5, 2, 9"  # one question, though it has two lines
        self.assertEqual(run("-p", "-", text=lines).stdout, run("-p", lines).stdout)
        for path in ("/nonexistent/question", "/"):
            wrong = run("-f", path)
            self.assertEqual(wrong.returncode, 2)
            self.assertIn(path + ": wanted a file", wrong.stderr)

    def test_conversation(self):
        self.assertEqual(run(text="What is 1 + 1?\n\n/new\nWhat is 2 + 2?\n/exit\nWhat is 3 + 3?\n").stdout, "2\n4\n")
        wrong = run(text="/nwe\nWhat is 1 + 1?\n")
        self.assertEqual((wrong.returncode, wrong.stdout), (2, ""))

    def test_stop_strings(self):
        for flag in ("--stop", "--reverse-prompt", "-r"):
            self.assertEqual(run("-p", QUESTION, flag, "5", flag, "zzz").stdout, "68\n")
        self.assertEqual(run("-p", QUESTION, "--stop", "42").stdout, "685\n")
        self.assertEqual(run("-p", QUESTION, "--stop", "ones").stdout, "685\n")  # stands in the reasoning
        answer = json.loads(run("-p", QUESTION, "--stop", "8", "--json").stdout)
        self.assertEqual((answer["text"], answer["finish_reason"]), ("6", "stop"))
        self.assertIn("Sum: 685", answer["reasoning"])
        self.assertEqual(answer["recovered"], "")
        self.assertEqual(run("-p", QUESTION, "--stop", "").returncode, 2)

    def test_ignore_eos(self):
        answer = json.loads(run("-p", QUESTION, "--ignore-eos", "-n", "300", "--json").stdout)
        self.assertEqual((answer["usage"]["completion_tokens"], answer["finish_reason"]), (300, "length"))

    def test_names_that_other_engines_have(self):
        want = json.loads(run("-p", QUESTION, "--json", "--seed", "7", "--max-tokens", "20", "--temperature", "1").stdout)
        again = run("-p", QUESTION, "--json", "-s", "7", "-n", "20", "--temp", "1", "-t", "1", "-c", "512")
        self.assertEqual(json.loads(again.stdout)["text"], want["text"], again.stderr)
        self.assertEqual(json.loads(again.stdout)["reasoning"], want["reasoning"])
        self.assertIn("/nonexistent/model", run("-m", "/nonexistent/model", "-p", "x").stderr)


SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}, "sex": {"enum": ["f", "m"]}, "old": {"type": "boolean"}},
          "required": ["name", "sex", "old"], "additionalProperties": False}


class ToASchema(unittest.TestCase):
    def check(self, text):
        answer = json.loads(text)
        self.assertEqual(list(answer), ["name", "sex", "old"])
        self.assertLessEqual(len(answer["name"]), 9)
        self.assertIn(answer["sex"], ["f", "m"])
        self.assertIs(type(answer["old"]), bool)

    def test_answers_match(self):
        schema = json.dumps(SCHEMA)
        for words in (["--temperature", "0"], *(["--temperature", "1", "--seed", str(seed)] for seed in range(4))):
            answer = json.loads(run("-p", "Who?", "--json", "--json-schema", schema, *words).stdout)
            self.assertEqual((answer["finish_reason"], answer["recovered"]), ("stop", ""), answer)
            self.check(answer["text"])
            self.assertEqual(json.loads(run("-p", "Who?", "-j", schema, *words).stdout), json.loads(answer["text"]))

    def test_a_file_says_the_same(self):
        want = run("-p", "Who?", "-j", json.dumps(SCHEMA)).stdout
        with tempfile.NamedTemporaryFile("w") as file:
            json.dump(SCHEMA, file, indent=2)
            file.flush()
            for flag in ("-j", "--json-schema", "--json-schema-file"):
                self.assertEqual(run("-p", "Who?", flag, file.name).stdout, want)

    def test_each_answer_of_a_conversation_matches(self):
        said = run("-j", json.dumps(SCHEMA), text="Who?\nAnd who else?\n/new\nWho?\n").stdout
        answers, decoder = [], json.JSONDecoder()
        while said:
            answers.append(said[:decoder.raw_decode(said)[1]])
            said = said[len(answers[-1]):].lstrip()
        self.assertEqual(len(answers), 3)
        for answer in answers:
            self.check(answer)
        self.assertEqual(answers[0], answers[2])

    def test_what_cannot_be_kept_is_refused(self):
        for source, said in (("/nonexistent", "/nonexistent: wanted a file with a JSON schema, found none that can be read"),
                             ("-", "-: wanted a file with a JSON schema, found none that can be read"),
                             ("{", "JSON schema: wanted JSON, found an error at byte 2 of 1"),
                             ('{"not": {}}', "JSON schema: wanted one that some value is valid by, found one that nothing matches")):
            wrong = run("-p", "x", "--json-schema", source)
            self.assertEqual((wrong.returncode, wrong.stdout, wrong.stderr), (2, "", f"sluice: --json-schema: {said}\n"))


if __name__ == "__main__":
    unittest.main()
