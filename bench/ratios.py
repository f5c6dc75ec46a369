"""The files that bench/compare.py writes besides its raw lines: ratios.md and ratios.png."""
import os
import statistics


def dims_of(cell):
    return f"{cell['d']}" if cell["d_v"] == cell["d"] else f"{cell['d']}/{cell['d_v']}"


def label_of(cell):
    mask = "causal" if cell["causal"] else "full"
    if "name" not in cell:
        return f"d{dims_of(cell)} {mask} {cell['s']}"
    heads = f"{cell['h']}" if cell["h_kv"] == cell["h"] else f"{cell['h']} on {cell['h_kv']}"
    keys = f"{cell['s']}" if cell["queries"] == cell["s"] else f"{cell['queries']} x {cell['s']}"
    return f"{cell['name']}: d{dims_of(cell)} {mask}, {cell['b']} x {heads} heads, {keys}"


def ratio(row, name):
    """Our TFLOP/s divided by those of the cell's best peer."""
    others = [t for n, t in row.items() if not n.startswith("flashjit")]
    return row[name] / max(others) if others else float("nan")


def shown(r):
    return f"{r:.3f}" if r == r else "-"


def write_table(a, cells):
    names = list(dict.fromkeys(n for _, row, _ in cells for n in row))
    mine = [n for n in names if n.startswith("flashjit")]
    lines = ["| cell | " + " | ".join(names) + " | " + " | ".join(f"{n} / best peer" for n in mine) + " | "
             + " | ".join(f"{n} / fa2" for n in mine) + " |", "|---" * (1 + len(names) + 2 * len(mine)) + "|"]
    best, over_fa2 = {n: [] for n in mine}, {n: [] for n in mine}
    for cell, row, _ in cells:
        entries = [label_of(cell)]
        entries += [f"{row[n]:.0f}" if n in row else "-" for n in names]
        for n in mine:
            r = ratio(row, n) if n in row else float("nan")
            best[n].append(r)
            entries.append(shown(r))
        for n in mine:
            r = row[n] / row["fa2"] if n in row and "fa2" in row else float("nan")
            over_fa2[n].append(r)
            entries.append(shown(r))
        lines.append("| " + " | ".join(entries) + " |")

    def mean(values):
        known = [v for v in values if v == v]
        return f"{statistics.geometric_mean(known):.3f} (least {min(known):.3f})" if known else "-"
    lines.append("| geometric mean | " + " | ".join([""] * len(names)) + " | " + " | ".join(mean(best[n]) for n in mine)
                 + " | " + " | ".join(mean(over_fa2[n]) for n in mine) + " |")
    text = f"TFLOP/s, {a.which} pass, best of the rounds' medians.\n\n" + "\n".join(lines) + "\n"
    open(os.path.join(a.out, "ratios.md"), "w").write(text)
    print(lines[-1])


def gpu_name():
    import torch
    return torch.cuda.get_device_name()


def pyplot():
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    return plt


def write_named_plot(a, cells):
    """A bar for each cell: the first of our columns, relative to the best peer."""
    plt = pyplot()
    mine = next(n for _, row, _ in cells for n in row if n.startswith("flashjit"))
    bars = [(label_of(cell), ratio(row, mine)) for cell, row, _ in cells if mine in row][::-1]
    figure, axis = plt.subplots(figsize=(9, 0.6 + 0.24 * len(bars)))
    axis.barh([label for label, _ in bars], [r for _, r in bars], color="tab:blue")
    axis.axvline(1, color="black", linewidth=0.8)
    for i, (_, r) in enumerate(bars):
        axis.text(r + 0.01, i, f"{r:.2f}", va="center", fontsize=8)
    axis.tick_params(axis="y", labelsize=8)
    axis.margins(x=0.1, y=0.01)
    axis.set_xlabel(f"{mine} / best peer, {gpu_name()}, {a.which}, {a.dtype}", fontsize=9)
    figure.tight_layout()
    figure.savefig(os.path.join(a.out, "ratios.png"), dpi=110)


def write_plot(a, cells):
    plt = pyplot()
    names = list(dict.fromkeys(n for _, row, _ in cells for n in row))
    dims = list(dict.fromkeys(dims_of(cell) for cell, _, _ in cells))
    figure, axes = plt.subplots(2, len(dims), figsize=(4.2 * len(dims), 6.2), squeeze=False, sharey=True)
    for column, d in enumerate(dims):
        for line, causal in enumerate((False, True)):
            axis = axes[line][column]
            here = [(cell, row) for cell, row, _ in cells if dims_of(cell) == d and cell["causal"] == causal]
            width = 0.8 / max(1, len(names))
            for i, name in enumerate(names):
                axis.bar([x + i * width for x in range(len(here))], [row.get(name, 0) for _, row in here], width, label=name)
            axis.set_xticks([x + 0.4 - width / 2 for x in range(len(here))], [str(cell["s"]) for cell, _ in here])
            axis.set_title(f"d {d}, {'causal' if causal else 'full'}", fontsize=10)
            axis.grid(axis="y", alpha=0.3)
    for line in axes:
        line[0].set_ylabel("TFLOP/s")
    figure.suptitle(f"{gpu_name()}, {a.which}, {a.dtype}, {a.tokens} tokens, heads x head_dim = {a.hidden}", fontsize=11)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="lower center", ncol=len(names), fontsize=9, frameon=False)
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    figure.savefig(os.path.join(a.out, "ratios.png"), dpi=110)
