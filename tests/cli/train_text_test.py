"""`lockstep train --model gpt` without any file: the text that is made, and the floor under its loss."""
import json
import math
import re
import unittest

from train_case import MLP, Case

GPT = ["--model", "gpt", "--blocks", "1", "--width", "32", "--heads", "2", "--context", "32", "--lanes", "2",
       "--lane-batch", "16", "--lr", "1e-2", "--examples", "2000", "--eval-examples", "300"]


WORDS = "the a every some many small big red quick dog cat bird girl king horse sleep run sing wait see hear chase find " \
    "today again there"


class Text(Case):
    def test_ends_near_the_floor(self):
        done = self.run_program("train", *GPT, "--steps", 250, "--out", self.path("run"))
        self.assertEqual(done.returncode, 0, done.stderr)
        summary = self.summary("run")
        floor = summary["loss_floor"]
        self.assertEqual(summary["data"], "text")
        for loss in (summary["final_loss"], summary["validation_loss"]):
            self.assertGreater(loss, floor)
            self.assertLess(loss, floor + 0.15 * (math.log(256) - floor))
        shown = f"{floor:.4f}"
        self.assertRegex(done.stdout, rf"on text \(2000 examples, loss floor {shown}\)")
        self.assertRegex(done.stdout, rf"final loss +[\d.]+  \(floor {shown}, the text's entropy; mean of the last ")
        with open(self.path("run", "index.html")) as file:
            page = file.read()
        self.assertIn("floor: the text's entropy", page)
        self.assertIn(f"<b>{shown}</b>", page)
        # The same text for another part of the run, with other workers.
        done = self.run_program("train", "--resume", self.path("run"), "-n", 2, "--steps", 252)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.summary("run")["loss_floor"], floor)
        self.assertTrue(re.search(rf"floor {shown}", done.stdout))

    def test_writes_what_it_has_learnt(self):
        self.train("run", *GPT, "--steps", 250)

        def infer(*args):
            done = self.run_program("infer", "--resume", self.path("run"), "--json", *args)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)

        row = infer("--generate", 600)
        self.assertAlmostEqual(row["loss"], self.summary("run")["validation_loss"], places=3)
        self.assertEqual(row["loss_floor"], self.summary("run")["loss_floor"])
        self.assertAlmostEqual(row["tokens_per_s"], 32 * row["sequences_per_s"])
        self.assertNotIn("images_per_s", row)
        # One character a byte; a byte that the text never had is written as \\xNN.
        self.assertEqual(len(re.sub(r"\\x[0-9a-f]{2}", "?", row["text"])), 600)
        known = set(re.findall("[a-z]+", WORDS)) | {word + "s" for word in re.findall("[a-z]+", WORDS)}
        words = re.findall("[a-z]+", row["text"])
        self.assertGreater(sum(word in known for word in words), 0.6 * len(words), row["text"])
        self.assertEqual(infer("--generate", 600)["text"], row["text"])
        self.assertEqual(infer("--generate", 20)["text"], row["text"][:20])
        self.assertNotEqual(infer("--generate", 600, "--seed", 1)["text"], row["text"])
        # The likeliest needs no luck.
        cold = infer("--generate", 40, "--temperature", 0, "--prompt", "the big do")
        self.assertEqual(cold["text"], infer("--generate", 40, "--temperature", 0, "--prompt", "the big do", "--seed", 5)["text"])
        self.assertTrue(cold["text"].startswith("g"), cold["text"])

        done = self.run_program("infer", "--resume", self.path("run"), "--prompt", "every ", "--generate", 30)
        self.assertRegex(done.stdout, r"ms a sequence of 32 tokens \([\d.]+ ms a token\)\naccuracy .*\nloss +[\d.]+  \(floor ")
        self.assertRegex(done.stdout, r"\ntext +temperature 1, seed 0\n\nevery [a-z]")
        self.assertNotIn("image", done.stdout)
        done = self.run_program("infer", "--resume", self.path("run"), "--generate", 0)
        self.assertNotIn("text  ", done.stdout)
        for flags, word in ((["--temperature", "-1"], "--temperature '-1'"), (["--generate", "-1"], "--generate '-1'"),
                            (["--prompt", ""], "--prompt ''")):
            self.refused("infer", "--resume", self.path("run"), *flags, words=[word, "accepted"])

    def test_other_models_write_nothing(self):
        self.train("run", *MLP, "--steps", 1)
        self.refused("infer", "--resume", self.path("run"), "--prompt", "a", words=["--prompt", "mlp", "writes no text"])

    def test_is_the_default_of_gpt_alone(self):
        self.assertEqual(self.train("gpt", *GPT, "--steps", 1)["data"], "text")
        mlp = self.train("mlp", "--model", "mlp", "--width", 8, "--examples", 40, "--eval-examples", 10, "--steps", 1)
        self.assertEqual(mlp["data"], "shapes")
        self.assertIsNone(mlp["loss_floor"])
        done = self.run_program("train", *GPT, "--steps", 1, cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.summary("runs/gpt-text")["steps"], 1)

    def test_a_file_has_no_floor(self):
        with open(self.path("book.txt"), "w") as file:
            file.write("to be or not to be " * 200)
        summary = self.train("run", *GPT, "--data", "text", "--data-dir", self.path("book.txt"), "--steps", 1)
        self.assertIsNone(summary["loss_floor"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
