"""Runs on a GPU: `compiled` is a Llama in FP8; `threads ABBA` changes threads."""

import queue
import sys
import threading

import torch


def compiled():
    from torchao.float8 import convert_to_float8_training
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=2, num_attention_heads=16,
        vocab_size=32000, max_position_embeddings=2048,
    )  # fmt: skip
    model = LlamaForCausalLM(config).cuda().bfloat16()
    convert_to_float8_training(
        model, module_filter_fn=lambda _, name: "lm_head" not in name
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model = torch.compile(model)
    tokens = torch.randint(0, 32000, (2, 1024), device="cuda")
    for _ in range(16):
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def threads():
    class Worker:
        def __init__(self):
            self.calls, self.done = queue.Queue(), queue.Queue()
            threading.Thread(target=self.run, daemon=True).start()

        def run(self):
            while True:
                self.done.put(self.calls.get()())

        def __call__(self, function):
            self.calls.put(function)
            self.done.get()

    workers = {name: Worker() for name in "AB"} | {"M": lambda function: function()}
    model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for name in sys.argv[2]:
        model(torch.ones(64, 1024, device="cuda")).sum().backward()
        workers[name](optimizer.step)
        optimizer.zero_grad()
    torch.cuda.synchronize()


torch.manual_seed(0)
globals()[sys.argv[1]]()
print("done", flush=True)
