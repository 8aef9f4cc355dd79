"""How large is a key-value cache? Bytes a token, for a context and users, from any model's config alone.

Multi-head, grouped, multi-query and latent attention, with and without sliding windows: what each token
keeps, and how many users fit into the memory at hand. `load=true` also loads the models and holds the formula
against the bytes of the cache that transformers builds.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from experiments.command_line.launch import launch
from experiments.steps.common import draw, set_threads, write_tables
from interp.lesson.config import KvCacheSizeConfig as Config
from interp.runs.run_folder import RunFolder

if TYPE_CHECKING:
    import pandas as pd


def run(config: Config, folder: RunFolder) -> None:
    """Read configs, work out, perhaps load and measure, save, say, draw."""
    import pandas as pd

    from interp.lesson import figures, kv_cache
    from interp.models.model import load_config, load_model
    from interp.results import tables
    from interp.runs.environment import available_memory

    set_threads(config, folder)
    numbers = (config.n_layers, config.n_heads)
    by_hand = [kv_cache.shape_by_hand(*numbers, n, config.d_head) for n in config.kv_heads]
    named = [kv_cache.shape_of(load_config(name), name) for name in config.models]
    given = config.memory_gb
    sizes = kv_cache.sizes(
        [*by_hand, *named],
        context=config.context,
        users=config.users,
        bytes_per_value=config.bytes_per_value,
        memory=available_memory() if given is None else given * 1e9,
    )
    growth = kv_cache.growth(
        [*by_hand, *named], context=config.context, bytes_per_value=config.bytes_per_value
    )
    written = {"table.csv": sizes, "growth.csv": growth}
    if config.load:
        parts = []
        for shape in named:
            limit = shape.limit or 64
            lengths = sorted({1, min(16, limit), min(64, limit)})
            parts.append(kv_cache.measure(load_model(shape.name), shape, lengths))
        written["measured.csv"] = pd.concat(parts, ignore_index=True)
    write_tables(folder, written)
    say(config, sizes, written.get("measured.csv"))
    sys.stdout.flush()
    saved = [tables.read(folder.path(f"{name}.csv")) for name in ("table", "growth")]
    draw(folder, "cache", figures.cache_sizes(*saved))


def say(config: Config, sizes: pd.DataFrame, measured: pd.DataFrame | None) -> None:
    """Print a row a model, and the formula beside real caches."""
    memory = sizes.memory.iloc[0]
    there = "memory not known" if memory != memory else f"{memory / 1e9:.1f} GB"  # noqa: PLR0124
    print(
        f"key-value caches, {config.bytes_per_value:g} bytes a number; users that fit into {there}; layers: "
        "those that keep all tokens + a window + none"
    )
    shown = sizes[["name", "scheme"]].assign(
        layers=[
            f"{full} + {sliding} + {other}"
            for full, sliding, other in sizes[
                ["full_layers", "sliding_layers", "other_layers"]
            ].to_numpy()
        ],
        window=sizes.window,
        values_per_token=sizes.values_per_token.map("{:,}".format),
        MB_per_token=(sizes.bytes_per_token / 1e6).map("{:.4g}".format),
        of_MHA=sizes.share_of_mha.map("{:.1%}".format),
        context=sizes.context,
        GB_per_user=(sizes.bytes_per_user / 1e9).map("{:.4g}".format),
        users=sizes.users,
        GB=(sizes.bytes / 1e9).map("{:.4g}".format),
        fit=sizes.users_that_fit,
    )
    if sizes.window.isna().all():
        shown = shown.drop(columns="window")
    print(shown.astype(object).where(shown.notna(), "").to_string(index=False))
    if measured is not None:
        print("\nthe formula, and the cache that transformers builds (bytes)")
        print(measured.to_string(index=False))


if __name__ == "__main__":
    sys.exit(launch("kv_cache_size"))
