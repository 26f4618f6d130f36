"""Rows of the benchmark that need PyTorch: one line each, name and value, tab between."""

import time

start = time.time()
import torch

imported = time.time()
torch.ones(1, device="cuda")
torch.cuda.synchronize()
print(f"PyTorch ready s\t{time.time() - imported:.3f}", flush=True)


def rate(count, work):
    """Calls a second, after a warm-up."""
    work()
    torch.cuda.synchronize()
    begin = time.time()
    for _ in range(count):
        work()
    torch.cuda.synchronize()
    return count / (time.time() - begin)


torch.manual_seed(0)
a, b = (torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2))
print(f"bf16 matmul 4096 it/s\t{rate(1000, lambda: a @ b):.1f}", flush=True)
x = torch.zeros(1024, device="cuda")
print(f"x.add_(1) it/s\t{rate(30000, lambda: x.add_(1)):.1f}", flush=True)
print(f"x.item() it/s\t{rate(5000, lambda: x[0].item()):.1f}", flush=True)

layers = []
for _ in range(6):
    layers += [torch.nn.Linear(512, 512), torch.nn.ReLU()]
model = torch.nn.Sequential(*layers).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.01)
batch = torch.randn(64, 512, device="cuda")


def step():
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()


print(f"MLP training eager it/s\t{rate(500, step):.1f}", flush=True)
