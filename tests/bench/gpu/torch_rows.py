"""Rows of the benchmark that need PyTorch: one line each, name and value, tab between.

Without arguments all rows run; with some, those whose name contains one of them. What is not installed (torchvision,
transformers) leaves its rows out.
"""

import time

import torch
from timing import print_rows, rate

imported = time.time()
torch.ones(1, device="cuda")
torch.cuda.synchronize()
READY = time.time() - imported


def ready():
    return READY


def matmul():
    a, b = (torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return rate(2000, lambda: a @ b, 10)


def add():
    x = torch.zeros(1024, device="cuda")
    return rate(30000, lambda: x.add_(1), 100)


def item():
    x = torch.zeros(1024, device="cuda")
    return rate(5000, lambda: x[0].item(), 100)


def mlp():
    layers = []
    for _ in range(6):
        layers += [torch.nn.Linear(512, 512), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    batch = torch.randn(64, 512, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=False)
        model(batch).square().mean().backward()
        optimizer.step()

    return model, batch, step


def mlp_training():
    return rate(500, mlp()[2], 20)


def mlp_inference():
    model, batch, _ = mlp()
    with torch.no_grad():
        return rate(2000, lambda: model(batch), 20)


def mlp_graph():
    step = mlp()[2]
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return rate(2000, graph.replay, 20)


def resnet(batch, count):
    import torchvision

    model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    images = torch.randn(batch, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (batch,), device="cuda")
    loss = torch.nn.CrossEntropyLoss()

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            value = loss(model(images), labels)
        value.backward()
        optimizer.step()

    return rate(count, step, 5)


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config()).cuda()


def gpt2_training():
    model = gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    tokens = torch.randint(0, 50000, (8, 512), device="cuda")

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            value = model(tokens, labels=tokens).loss
        value.backward()
        optimizer.step()

    return rate(40, step, 5)


def gpt2_decoding():
    model = gpt2().eval().to(torch.bfloat16)
    prompt = torch.randint(0, 50000, (1, 16), device="cuda")

    def generate():
        model.generate(prompt, max_new_tokens=64, min_new_tokens=64, do_sample=False, pad_token_id=0)

    return 64 * rate(4, generate, 1)


def copies():
    """Large copies of pageable memory in one thread, matrix products in another."""
    import threading

    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    host, there = torch.ones(64 << 20, dtype=torch.float32), torch.empty(64 << 20, device="cuda")
    stop = threading.Event()

    moved = []

    def copy():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            begin, count = time.time(), 0
            while not stop.is_set():
                there.copy_(host)
                side.synchronize()
                count += 1
            moved.append(count * host.nbytes / 1e9 / (time.time() - begin))

    thread = threading.Thread(target=copy)
    thread.start()
    try:
        products = rate(4000, lambda: a @ a, 10)
    finally:
        stop.set()
        thread.join()
    return products, moved[0]


ROWS = [
    ("PyTorch ready s", ready),
    ("bf16 matmul 4096 it/s", matmul),
    ("x.add_(1) it/s", add),
    ("x.item() it/s", item),
    ("MLP training eager it/s", mlp_training),
    ("MLP inference eager it/s", mlp_inference),
    ("MLP training, CUDA graph replay it/s", mlp_graph),
    ("ResNet-50 training bf16, batch 8 it/s", lambda: resnet(8, 100)),
    ("ResNet-50 training bf16, batch 128 it/s", lambda: resnet(128, 60)),
    ("GPT-2 training bf16, 8x512 it/s", gpt2_training),
    ("GPT-2 decoding tokens/s", gpt2_decoding),
    ("bf16 matmul 4096 beside pageable copies it/s", lambda: copies()[0]),
    ("pageable copies beside bf16 matmul GB/s", lambda: copies()[1]),
]

print_rows(ROWS)
