"""Checks data, schedule, resuming and Q4_0: `python -m unittest pipeline_native.test_training`."""

import contextlib
import io
import json
import tempfile
import unittest
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from .data import Corpus, encode, split, train_tokenizer
from .quantize import q4
from .schedule import FLOOR, Schedule
from .train import main as train

STORIES = [f"The {a} {b} saw a {c}. It ran home." for a in ("red", "old", "big") for b in ("cat", "owl") for c in ("fox", "bee")]


class Data(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.text = self.folder / "stories.txt"
        self.text.write_text("\n<|endoftext|>\n".join(STORIES))

    def test_held_out_documents_are_apart_and_always_the_same(self):
        training, held_out = split(self.text)
        self.assertEqual(sorted(training + held_out), sorted(STORIES))
        self.assertEqual(len(held_out), 1)
        self.assertEqual(split(self.text), (training, held_out))

    def test_tokenizer_reverses_every_text(self):
        tokenizer = train_tokenizer(STORIES, 280)
        for text in ("The old owl", "Zoë 世界 🙂\n\t x"):
            self.assertEqual(tokenizer.decode(tokenizer.encode(text).ids), text)
        row = encode(tokenizer, ["The", "cat"])
        self.assertEqual([i for i, token in enumerate(row.tolist()) if token == 0][0], 0)
        self.assertEqual(row.tolist().count(0), 3)

    def test_batches_depend_on_seed_and_step(self):
        rows = [torch.arange(100), torch.arange(1000, 1100)]
        corpus, other = Corpus(rows, [0.5, 0.5], 1), Corpus(rows, [0.5, 0.5], 2)
        inputs, targets = corpus.batch(3, 64, 10)
        torch.testing.assert_close(targets, inputs + 1)
        torch.testing.assert_close(corpus.batch(3, 64, 10)[0], inputs)
        self.assertFalse(torch.equal(corpus.batch(4, 64, 10)[0], inputs))
        self.assertFalse(torch.equal(other.batch(3, 64, 10)[0], inputs))
        self.assertTrue(20 < (inputs[:, 0] >= 1000).sum() < 44)

    def run_train(self, out: str, steps: int, *more: str) -> dict:
        argv = ["--arch", "arch2_4", "--text", str(self.text), "--out", str(self.folder / out), "--dim", "16"]
        argv += ["--vocab", "270", "--context", "16", "--batch", "2", "--warmup", "2", "--save-every", "3"]
        with contextlib.redirect_stdout(io.StringIO()):
            return train([*argv, "--steps", str(steps), "--schedule", "constant", *more])

    def test_prompts_begin_with_the_end_token(self):
        self.run_train("model", 3)
        tokenizer = Tokenizer.from_file(str(self.folder / "model" / "tokenizer.json"))
        self.assertEqual(tokenizer.encode("The cat").ids[0], 0)
        config = json.loads((self.folder / "model" / "config.json").read_text())
        self.assertEqual((config["denseDelay"], config["expertDelay"], len(config["layers"])), (1, 2, 6))
        self.assertEqual((config["bosTokenId"], config["eosTokenIds"]), (0, [0]))

    def test_resuming_replays_the_same_steps(self):
        self.run_train("once", 7)
        losses = [json.loads(line) for line in (self.folder / "once" / "metrics.jsonl").read_text().splitlines()]
        self.run_train("once", 7, "--resume")
        again = [json.loads(line) for line in (self.folder / "once" / "metrics.jsonl").read_text().splitlines()]
        # The checkpoint is of step 6; step 7 and the held-out figures come out as before.
        self.assertEqual(again[len(losses)]["step"], 6)
        self.assertEqual(losses[-1]["heldOutBF16"], again[-1]["heldOutBF16"])


class Rate(unittest.TestCase):
    def test_cosine_rises_and_falls(self):
        schedule = Schedule("cosine", 10, 110)
        self.assertAlmostEqual(schedule.share(0), 0.1)
        self.assertAlmostEqual(schedule.share(10), 1.0)
        self.assertAlmostEqual(schedule.share(60), (1 + FLOOR) / 2)
        self.assertAlmostEqual(schedule.share(110), FLOOR)

    def test_constant_decays_when_told(self):
        with tempfile.TemporaryDirectory() as folder:
            schedule = Schedule("constant", 10, 10_000, finish=Path(folder) / "finish")
            schedule.look(500)
            self.assertEqual((schedule.share(500), schedule.steps), (1.0, 10_000))
            (Path(folder) / "finish").write_text("100")
            schedule.look(600)
            schedule.look(601)
        self.assertEqual(schedule.steps, 700)
        self.assertEqual([schedule.share(s) for s in (600, 650, 700)], [1.0, 0.5, FLOOR])


class Quantize(unittest.TestCase):
    def test_q4_by_hand(self):
        # s = 3.5 / 7 = 0.5 is exact in half precision; 0.75 / 0.5 = 1.5 goes to the even level 2.
        row = torch.tensor([[3.5, -3.5, 0.75, 0.2, -0.3] + [0.0] * 27 + [7.0, 1.4]])
        expected = torch.tensor([[3.5, -3.5, 1.0, 0.0, -0.5] + [0.0] * 27 + [7.0, 1.0]])
        torch.testing.assert_close(q4(row), expected)

    def test_q4_keeps_zero(self):
        torch.testing.assert_close(q4(torch.zeros(2, 40)), torch.zeros(2, 40))


if __name__ == "__main__":
    unittest.main()
