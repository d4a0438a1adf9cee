"""The shapes of the tensors of a few models."""


def resnet18() -> list[tuple[int, ...]]:
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    before = 64
    for width in (64, 128, 256, 512):
        for block in range(2):
            shapes += [(width, before if block == 0 else width, 3, 3), (width,), (width,), (width, width, 3, 3)]
            shapes += [(width,), (width,)]
            if block == 0 and before != width:
                shapes += [(width, before, 1, 1), (width,), (width,)]
        before = width
    return [*shapes, (1000, 512), (1000,)]


def gpt2() -> list[tuple[int, ...]]:
    norm = [(768,), (768,)]
    layer = [*norm, (2304, 768), (2304,), (768, 768), (768,), *norm, (3072, 768), (3072,), (768, 3072), (768,)]
    return [(50257, 768), (1024, 768), *(layer * 12), *norm]


def vit() -> list[tuple[int, ...]]:
    norm = [(768,), (768,)]
    layer = [*norm, (2304, 768), (2304,), (768, 768), (768,), *norm, (3072, 768), (3072,), (768, 3072), (768,)]
    return [(1, 1, 768), (1, 197, 768), (768, 3, 16, 16), (768,), *(layer * 12), *norm, (1000, 768), (1000,)]


def llama() -> list[tuple[int, ...]]:
    layer = [(2048, 2048), (512, 2048), (512, 2048), (2048, 2048), *[(8192, 2048)] * 2, (2048, 8192), (2048,), (2048,)]
    return [(128256, 2048), *(layer * 16), (2048,)]


def mlp(outputs: int) -> list[tuple[int, ...]]:
    return [(128, 33), (128,), (128, 128), (128,), (outputs, 128), (outputs,)]


SHAPES: dict[str, list[tuple[int, ...]]] = {
    "mlp": [*mlp(8), *mlp(1)],  # an actor and a critic
    "resnet18": resnet18(),
    "vit": vit(),
    "gpt2": gpt2(),
    "llama": llama(),
    "one": [(16384, 16384)],
}
