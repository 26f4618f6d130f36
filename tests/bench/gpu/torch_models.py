"""Rows of the benchmark that are models as they are served, and need PyTorch: one line each, name and value, tab between.

Without arguments all rows run; with some, those whose name contains one of them. Best of three times, because the
processor is the limit in most of them.
"""

import torch
from timing import print_rows, rate


def resnet_inference():
    import torchvision

    model = torchvision.models.resnet50().eval().cuda()
    image = torch.randn(1, 3, 224, 224, device="cuda")
    with torch.no_grad():
        return rate(200, lambda: model(image), 30, times=3)


def loader():
    """Input from worker processes, through pinned memory, beside the model that reads it."""
    data = torch.utils.data.TensorDataset(torch.randn(4096, 3, 64, 64), torch.randint(0, 10, (4096,)))
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(10)).cuda()
    batches = torch.utils.data.DataLoader(data, 64, num_workers=4, pin_memory=True, persistent_workers=True)

    def epoch():
        for images, labels in batches:
            images, labels = images.cuda(non_blocking=True), labels.cuda(non_blocking=True)
            torch.nn.functional.cross_entropy(model(images), labels).backward()

    return len(batches) * rate(2, epoch, 1, times=3)


def mlp():
    layers = []
    for _ in range(6):
        layers += [torch.nn.Linear(512, 512), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers).cuda().eval(), torch.randn(64, 512, device="cuda")


def transformer():
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, norm_first=True)
    model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).cuda().eval().to(torch.bfloat16)
    return model, torch.randn(4, 64, 512, device="cuda", dtype=torch.bfloat16)


def inference(parts, mode=None):
    """Eager without a mode; with one compiled, the compiling not counted."""
    model, batch = parts()
    if mode:
        torch.compiler.reset()
        model = torch.compile(model, mode=mode)
    with torch.no_grad():
        return rate(1000, lambda: model(batch), 20, times=3)


def llama():
    """A decoder as large language models are: RMS norm, rotary positions, grouped heads, SwiGLU; one token at a time."""
    width, heads, groups, depth, length = 1024, 16, 4, 12, 512
    size = width // heads
    functional = torch.nn.functional
    new = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 0.02
    layers = [
        dict(qkv=new(width + 2 * groups * size, width), out=new(width, width), up=new(8 * width, width), down=new(width, 4 * width),
             norms=torch.ones(2, width, device="cuda", dtype=torch.bfloat16),
             cache=torch.zeros(2, 1, groups, length, size, device="cuda", dtype=torch.bfloat16))
        for _ in range(depth)
    ]
    words = new(32000, width)
    angles = torch.outer(torch.arange(length), 10000 ** (-torch.arange(0, size, 2) / size)).cuda()
    turn = torch.polar(torch.ones_like(angles), angles)

    def rotate(x, at):
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turn[at]).flatten(-2).to(x.dtype)

    def step(token, at):
        x = words[token]
        for layer in layers:
            h = functional.rms_norm(x, (width,), layer["norms"][0])
            q, k, v = (h @ layer["qkv"].T).split([width, groups * size, groups * size], -1)
            q, k = rotate(q.view(1, heads, 1, size), at), rotate(k.view(1, groups, 1, size), at)
            layer["cache"][0, :, :, at : at + 1] = k
            layer["cache"][1, :, :, at : at + 1] = v.view(1, groups, 1, size)
            keys, values = layer["cache"][:, :, :, : at + 1]
            h = functional.scaled_dot_product_attention(q, keys, values, enable_gqa=True)
            x = x + h.reshape(1, width) @ layer["out"].T
            gate, up = (functional.rms_norm(x, (width,), layer["norms"][1]) @ layer["up"].T).chunk(2, -1)
            x = x + (functional.silu(gate) * up) @ layer["down"].T
        return (x @ words.T).argmax(-1)

    def generate():
        token = torch.zeros(1, dtype=torch.long, device="cuda")
        for at in range(64):
            token = step(token, at)
        token.item()

    with torch.no_grad():
        return 64 * rate(2, generate, 2, times=3)


def transformers_llama():
    """The same by the library that people use, with the cache of keys and values that it makes itself."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32000, hidden_size=1024, intermediate_size=4096, num_hidden_layers=12, num_attention_heads=16,
        num_key_value_heads=4, max_position_embeddings=512, attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(config).cuda().eval().to(torch.bfloat16)
    prompt = torch.randint(0, 32000, (1, 32), device="cuda")

    def generate():
        model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=64, min_new_tokens=64, do_sample=False,
            use_cache=True, pad_token_id=0,
        )

    return 64 * rate(1, generate, 1, times=3)


ROWS = [
    ("ResNet-50 inference eager, batch 1 it/s", resnet_inference),
    ("Llama-style decoding tokens/s", llama),
    ("LlamaForCausalLM generate tokens/s", transformers_llama),
    ("DataLoader with pinned memory batches/s", loader),
    ("transformer inference eager it/s", lambda: inference(transformer)),
    ("torch.compile MLP inference it/s", lambda: inference(mlp, "default")),
    ("torch.compile reduce-overhead MLP it/s", lambda: inference(mlp, "reduce-overhead")),
    ("torch.compile transformer it/s", lambda: inference(transformer, "default")),
    ("torch.compile reduce-overhead transformer it/s", lambda: inference(transformer, "reduce-overhead")),
]

print_rows(ROWS)
