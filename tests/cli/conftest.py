# SPDX-License-Identifier: BSD-3-Clause
# A folder of a user: model.py with several models, created for each test.

from __future__ import annotations

from pathlib import Path

import pytest

MODEL = """\
import torch

class Net(torch.nn.Module):
    example_inputs = (torch.tensor([[1.0, -2.0, 3.0, 4.0]]),)

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 2)

    def forward(self, x):
        return torch.relu(self.linear(x))

class NoInputs(torch.nn.Module):
    def forward(self, x, ids):
        return x[ids]

class Branches(Net):
    def forward(self, x):
        if x.sum() > 0:
            return x
        return -x

def build():
    return Net().eval(), (torch.ones(2, 4),)

def train():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout()), (torch.ones(1, 4),)

def broken():
    raise ValueError("no weights here")

number = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    return tmp_path
