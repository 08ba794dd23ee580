"""`sluice run` as users and scripts use it: a terminal with its keys, files, pipes, stop strings."""
import fcntl
import json
import os
import pty
import re
import resource
import select
import signal
import struct
import subprocess
import tempfile
import termios
import time
import unittest

COMMAND = os.environ["SLUICE_COMMAND"]
MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "models", "sluice-16e-tiny")
WATCHDOG = 120  # seconds after which the test counts as hanging; the tests measure no time
QUESTION = "What is 417 + 268?"


def run(*words, text=""):
    return subprocess.run([COMMAND, "run", "-q", *words], input=text, capture_output=True, text=True, timeout=WATCHDOG)


class Terminal:
    """A chat, or a shell, on its own pseudo-terminal."""

    def __init__(self, *words, shell=None, **environment):
        self.shown = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update({"TERM": "xterm", "HOME": "/nonexistent", **environment})
            command = shell or [COMMAND, "run", "-q", "--hide-reasoning", *words]
            os.execvp(command[0], command)
        self.expect("> ")

    def resize(self, rows, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def modes(self):
        return subprocess.run(["stty", "-a"], stdin=self.fd, capture_output=True, text=True, check=True).stdout

    def send(self, keys):
        os.write(self.fd, keys.encode())

    def expect(self, pattern):
        """Reads until `pattern` appears and returns the text up to its end; colours and cursor movements are removed."""
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


def taken_by_workers(process, least):
    """(thread, signal) for every signal that a worker thread of the program does not block; there must be at least `least` workers."""
    threads = [int(name) for name in os.listdir(f"/proc/{process}/task") if int(name) != process]
    if len(threads) < least:
        raise AssertionError(f"wanted {least} workers, found {len(threads)}")
    out = []
    for thread in threads:
        with open(f"/proc/{process}/task/{thread}/status") as status:
            blocked = int(re.search(r"SigBlk:\s*([0-9a-f]+)", status.read())[1], 16)
        asked = (signal.SIGWINCH, signal.SIGCONT, signal.SIGTSTP, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
        out += [(thread, one.name) for one in asked if not blocked >> (one - 1) & 1]
    return out


class OnATerminal(unittest.TestCase):
    def test_editing_and_history(self):
        t = Terminal()
        t.ask("What is 1 + 1?\r", "2")
        t.ask("What is 2 + 3?\x1b[D\x7f2\r", "4")  # left, backspace: 2 + 2
        t.ask("\x1b[A\x1b[A\r", "2")  # the message before the last
        t.ask("at is 3 + 3?\x1b[HWh\r", "6")  # Home
        t.ask("xWhat is 4 + 4?\x01\x1b[3~\r", "8")  # start of the line, Delete
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
        self.assertIn("-icanon", t.modes())
        # The terminal is restored, and signals have their default effect again.
        os.kill(t.pid, signal.SIGINT)
        self.assertEqual(os.WTERMSIG(os.waitpid(t.pid, 0)[1]), signal.SIGINT)
        self.assertIn(" icanon", t.modes())
        os.close(t.fd)

    def ends_well(self, t):
        """Whatever the line holds: Ctrl-C drops the line, the next prompt is answered, and the program exits on request."""
        t.send("\x07\x1b[4~\x15")
        t.shown = b""
        t.ask("\x15What is 2 + 2?\r", "4")
        t.send("/exit\r")
        self.assertEqual(t.status(), 0)

    def test_workers_take_no_signals(self):
        t = Terminal("--threads", "3")
        self.assertEqual(taken_by_workers(t.pid, least=2), [])
        t.send("/exit\r")
        self.assertEqual(t.status(), 0)

    def test_a_window_that_is_resized(self):
        t = Terminal("--threads", "3")
        t.send("What is this line of some words that goes on " * 3)
        end, count = time.monotonic() + 3, 0
        while time.monotonic() < end:
            t.resize(24 + count % 17, 5 + 7 * count % 115)
            count += 1
            if count % 100 == 0:
                t.send("x\x7f")
            while select.select([t.fd], [], [], 0)[0]:
                self.assertNotEqual(t.read(), b"", f"ended after {count} resizes")
        self.assertGreater(count, 1000)
        t.resize(24, 80)
        self.ends_well(t)

    def test_a_window_that_is_resized_during_an_answer(self):
        t = Terminal("--ignore-eos", "-n", "60")
        t.send("Reverse the word pot.\r")
        for columns in (30, 120, 40):
            t.resize(24, columns)
        t.expect("\n> ")
        t.send("a" * 100 + "\x15/exit\r")
        self.assertEqual(t.status(), 0)

    def test_stopped_and_brought_back(self):
        t = Terminal(shell=["bash", "--norc", "--noediting", "-i"], PS1="shell> ")
        t.send(f"{COMMAND} run -q --hide-reasoning --threads 3\r")
        t.expect(r"\n> ")
        for _ in range(8):
            t.send("What is 1")
            t.expect("What is 1")
            t.send("\x1a")
            t.expect("Stopped.*shell> ")
            self.assertIn(" icanon", t.modes())
            t.send("fg\r")
            t.expect("> What is 1")
            self.assertIn("-icanon", t.modes())
            t.ask(" + 1?\r", "2")
        t.send("/exit\r")
        t.expect("shell> ")
        t.send("echo status $?\r")
        t.expect("status 0")
        t.send("exit\r")
        t.status()

    def test_stopped_from_outside(self):
        t = Terminal("--threads", "3")
        for _ in range(20):
            t.send("What")
            os.kill(t.pid, signal.SIGSTOP)
            os.waitpid(t.pid, os.WUNTRACED)
            mode = termios.tcgetattr(t.fd)
            mode[3] |= termios.ICANON | termios.ECHO  # as a shell leaves it
            termios.tcsetattr(t.fd, termios.TCSANOW, mode)
            os.kill(t.pid, signal.SIGCONT)
            t.expect("> ")
        self.ends_well(t)

    def test_keys_that_would_read_editor_commands(self):
        for keys in ('\x1bx"\r', "\x1bx'\r", "\x1bxbind \"\r", "\x1bx\\\r", "\x1bx\x7f\r", "\x1bxhistory\r", "\x1bxedit off\r", "\x1b\x1bx\"\r",
                     "abc\x1bx\x15\r", "\x1bx\xff\r"):
            with self.subTest(keys=keys):
                t = Terminal()
                t.send(keys.replace("\r", ""))
                self.ends_well(t)

    def test_an_editrc(self):
        with tempfile.TemporaryDirectory() as home:
            def start(text):
                with open(os.path.join(home, ".editrc"), "w") as file:
                    file.write(text)
                return Terminal(HOME=home)
            t = start('# mine\n\n  sluice:bind "^T" ed-move-to-beg\nmysql:bind "^T" ed-command\nbind "^G" ed-delete-prev-char\n')
            t.ask("hat is 2 + 2?\x14W\r", "4")
            t.send("/exit\r")
            self.assertEqual(t.status(), 0)
            for line, said in (('bind "^T ed-move-to-beg', "line 1: unclosed quote"),
                               ('bind "^T" ed-command', "line 1: the command ed-command is not supported"),
                               ("bend ^T", "line 1: 'bend' is not a command of libedit")):
                with open(os.path.join(home, ".editrc"), "w") as file:
                    file.write(line + "\n")
                pid, fd = pty.fork()
                if pid == 0:
                    os.environ.update({"TERM": "xterm", "HOME": home})
                    os.execv(COMMAND, [COMMAND, "run", "-q"])
                t.pid, t.fd, t.shown = pid, fd, b""
                t.expect(re.escape(f".editrc {said}") + ".*> ")
                t.send('\x14"\r' if "command" in line else "\r")
                self.ends_well(t)
            t = start("bind -v\n")
            t.send('What\x1b:"')
            t.send('\x1b:bind "')
            t.send("\x1bddi")
            t.ask("What is 2 + 2?\r", "4")
            t.send("/exit\r")
            self.assertEqual(t.status(), 0)

    def test_letters_whose_second_half_was_a_key(self):
        t = Terminal()
        t.send("\xf8\xf8")  # the same code as Meta-x
        t.expect("\xf8\xf8")
        self.ends_well(t)


class InScripts(unittest.TestCase):
    def test_workers_of_the_server_take_no_signals(self):
        server = subprocess.Popen([COMMAND, "serve", "-q", "--port", "0", "--threads", "3"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            self.assertTrue(server.stdout.readline())  # the server is listening
            self.assertEqual(taken_by_workers(server.pid, least=4), [])
        finally:
            server.terminate()
            self.assertEqual(server.wait(WATCHDOG), 0)
            server.stdout.close()

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
        lines = "Sort these numbers:\n5, 2, 9"  # one prompt of two lines
        self.assertEqual(run("-p", "-", text=lines).stdout, run("-p", lines).stdout)
        for path, why in (("/nonexistent/question", "No such file or directory"), ("/", "Is a directory")):
            wrong = run("-f", path)
            self.assertEqual(wrong.returncode, 2)
            self.assertEqual(wrong.stderr, f"sluice: {path}: cannot read the prompt: {why}\n")

    def test_a_full_context_ends_no_pipe(self):
        long = "What is 1? " * 60
        lines = "\n".join((QUESTION, long, "/new", QUESTION))
        ran = run("--max-model-len", "256", "--temperature", "0", "--hide-reasoning", text=lines + "\n")
        self.assertEqual((ran.stdout, ran.returncode), ("685\n685\n", 2), ran.stderr)
        self.assertIn("prompt: wanted fewer than 256 tokens", ran.stderr)
        self.assertTrue(ran.stderr.endswith("; /new begins a new conversation\n"), ran.stderr)

    def test_what_has_no_end_is_refused(self):
        most = "wanted at most 16777216 bytes, found more\n"
        for words in (("-f", "/dev/zero"), ("-j", "/dev/zero", "-p", "x")):
            wrong = run(*words)
            self.assertEqual((wrong.returncode, wrong.stdout), (2, ""))
            self.assertIn("/dev/zero: " + most, wrong.stderr)
        for words in ((), ("-p", "-"), ("-f", "-")):
            with open("/dev/zero", "rb") as zeros:
                wrong = subprocess.run([COMMAND, "run", "-q", *words], stdin=zeros, capture_output=True, text=True, timeout=WATCHDOG)
            self.assertEqual((wrong.returncode, wrong.stdout, wrong.stderr), (2, "", "sluice: standard input: " + most))

    def test_bytes_that_are_no_text(self):
        for flags, given in ((["-p", b"a\xffb"], b""), (["-p", "-"], b"a\xffb"), ([], b"a\xffb\n"), (["-p", "a", "--system-prompt", b"a\xffb"], b"")):
            ran = subprocess.run([COMMAND, "run", "-q", *flags], input=given, capture_output=True, timeout=60)
            self.assertEqual((ran.returncode, ran.stdout), (2, b""), ran)
            self.assertIn(b"wanted text in UTF-8, found other bytes", ran.stderr)

    def test_files_that_are_none(self):
        for words in ((), ("-p", "-"), ("-f", "-")):
            folder = os.open("/", os.O_RDONLY)
            wrong = subprocess.run([COMMAND, "run", "-q", *words], stdin=folder, capture_output=True, text=True, timeout=WATCHDOG)
            os.close(folder)
            self.assertEqual((wrong.returncode, wrong.stdout), (2, ""))
            self.assertEqual(wrong.stderr, "sluice: standard input: cannot be read: Is a directory\n")
        with tempfile.TemporaryDirectory() as folder:
            os.mkfifo(pipe := os.path.join(folder, "pipe"))
            for flag, file in (("--questions", pipe), ("--questions", "/dev/zero"), ("--questions", "/"), ("-m", pipe), ("-m", "/dev/zero")):
                wrong = subprocess.run([COMMAND, "eval", "-q", flag, file], capture_output=True, text=True, timeout=WATCHDOG)
                self.assertEqual((wrong.returncode, wrong.stdout), (2, ""), (flag, file))
                self.assertIn(file, wrong.stderr)
                self.assertEqual(wrong.stderr.count("\n"), 1, wrong.stderr)

    def test_a_working_directory_that_is_gone(self):
        with tempfile.TemporaryDirectory() as parent:
            gone = os.path.join(parent, "gone")
            script = 'cd "$1" && rmdir "$1" && shift && exec "$@"'
            for words in (["run", "-p", QUESTION, "--hide-reasoning"], ["inspect", MODEL]):
                os.mkdir(gone)
                out = subprocess.run(["sh", "-c", script, "sh", gone, os.path.abspath(COMMAND), *words], capture_output=True, text=True, timeout=WATCHDOG)
                self.assertEqual(out.returncode, 0, out.stderr)

    def test_a_name_that_no_file_can_have(self):
        for words in (["inspect", "x/" * 5000], ["explain", "--model", "x" * 5000], ["run", "-m", "x/" * 5000, "-p", "hi"]):
            out = subprocess.run([COMMAND, *words], capture_output=True, text=True, timeout=WATCHDOG)
            self.assertEqual(out.returncode, 2, out.stderr[-500:])
            self.assertNotIn("filesystem error", out.stderr)
            self.assertEqual(out.stderr.count("\n"), 1, out.stderr[-500:])

    def test_files_that_may_not_grow(self):
        """Reaching the file size limit (ulimit -f) is an error like a full disk and does not kill the process."""
        with tempfile.TemporaryDirectory() as directory:
            name = os.path.join(directory, "out")
            with open(name, "wb") as file:
                out = subprocess.run([COMMAND, "inspect", MODEL], stdout=file, stderr=subprocess.PIPE, text=True, timeout=WATCHDOG,
                                     preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)))
            self.assertEqual(out.returncode, 2, out.stderr)
            self.assertIn("standard output: cannot be written: File too large", out.stderr)

    def test_lines_of_another_system(self):
        self.assertEqual(run(text="What is 1 + 1?\r\n\r\n/new\r\nWhat is 2 + 2?\r\n/exit\r\nWhat is 3 + 3?\r\n").stdout, "2\n4\n")
        self.assertEqual(run(text="/exit \t\nWhat is 3 + 3?\n").stdout, "")
        self.assertEqual(run("-p", "-", text="What is 1 + 1?\r\n").stdout, run("-p", "What is 1 + 1?").stdout)

    def test_conversation(self):
        self.assertEqual(run(text="What is 1 + 1?\n\n/new\nWhat is 2 + 2?\n/exit\nWhat is 3 + 3?\n").stdout, "2\n4\n")
        wrong = run(text="/nwe\nWhat is 1 + 1?\n")
        self.assertEqual((wrong.returncode, wrong.stdout), (2, ""))

    def test_words_behind_two_dashes(self):
        """POSIX, guideline 10: arguments after "--" are not flags."""
        self.assertEqual(run("-p", QUESTION, "--temperature", "0", "--", MODEL).stdout, run("-p", QUESTION, "--temperature", "0").stdout)
        self.assertIn("-none", run("-p", "x", "--", "-none").stderr)
        self.assertIn("unexpected argument 'b'", run("-p", "x", "--", MODEL, "b").stderr)

    def test_stop_strings(self):
        for flag in ("--stop", "--reverse-prompt", "-r"):
            self.assertEqual(run("-p", QUESTION, flag, "5", flag, "zzz").stdout, "68\n")
        self.assertEqual(run("-p", QUESTION, "--stop", "42").stdout, "685\n")
        self.assertEqual(run("-p", QUESTION, "--stop", "ones").stdout, "685\n")  # the reasoning contains it, too
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
        for source, said in (("/nonexistent", "/nonexistent: cannot read a JSON schema: No such file or directory"),
                             ("-", "-: cannot read a JSON schema: No such file or directory"),
                             ("{", "JSON schema: wanted JSON, found text that ends too early, after 1 byte"),
                             ('{"not": {}}', "JSON schema: wanted a schema that allows some value, found a schema that nothing matches")):
            wrong = run("-p", "x", "--json-schema", source)
            self.assertEqual((wrong.returncode, wrong.stdout, wrong.stderr), (2, "", f"sluice: --json-schema: {said}\n"))


if __name__ == "__main__":
    unittest.main()
