"""Numbers for the tests of the aggregation rules and of outer and inner optimizers, calculated from the definitions with nothing but NumPy, in float64.

    python rules.py > rules.json
"""

import json

import numpy as np

LENGTH = 17


def lower_median(numbers):
    return float(np.quantile(np.asarray(numbers), 0.5, method="lower"))


def weights_of(settings, reports):
    samples = np.array([r["samples"] for r in reports], dtype=float)
    base = samples if settings["weights"] == "samples" else (samples > 0).astype(float)
    counted = base > 0
    norms = np.array([r["norm"] for r in reports])
    losses = np.array([r["loss"] for r in reports])
    rates = np.array([r["learning_rate"] * r["steps"] for r in reports])
    slopes = norms / rates

    if settings["kind"] == "dynamic-weighted":
        loss_limit, norm_limit = settings["loss_limit"], settings["norm_limit"]
        if settings["relative"]:
            loss_limit *= lower_median(losses[counted])
            norm_limit *= lower_median(slopes[counted])
        suspect = (losses > loss_limit) | (slopes > norm_limit)
        base = np.where(suspect, base * settings["penalty"], base)

    if settings["clip"] == "none":
        clips = np.ones(len(reports))
    else:
        limit = lower_median(norms[counted]) if settings["clip"] == "median" else settings["clip"]
        clips = np.minimum(1.0, limit / norms)
    return base, clips


def squared_distances(updates):
    return ((updates[:, None, :] - updates[None, :, :]) ** 2).sum(axis=2)


def krum_scores(updates, faulty):
    near = len(updates) - faulty - 2
    apart = squared_distances(updates)
    return np.array([np.sort(np.delete(row, i))[:near].sum() for i, row in enumerate(apart)])


def robust(settings, updates):
    """The result of a rule that sees each update."""
    kind, faulty = settings["kind"], settings["faulty"]
    if kind == "median":
        return np.median(updates, axis=0)
    if kind == "trimmed-mean":
        ordered = np.sort(updates, axis=0)
        return ordered[faulty : len(updates) - faulty].mean(axis=0)
    if kind == "krum":
        return updates[np.argmin(krum_scores(updates, faulty))]
    if kind == "multi-krum":
        order = np.argsort(krum_scores(updates, faulty), kind="stable")
        return updates[order[: len(updates) - faulty]].mean(axis=0)
    centre = np.zeros(updates.shape[1])
    for _ in range(settings["iterations"]):
        away = updates - centre
        distances = np.linalg.norm(away, axis=1)
        radius = lower_median(distances) if settings["clip"] == "median" else settings["clip"]
        factors = np.minimum(1.0, radius / np.maximum(distances, 1e-300))
        centre = centre + (factors[:, None] * away).mean(axis=0)
    return centre


def each_case(rng, kind, count, clip, faulty=1, iterations=3, bad=1):
    updates = rng.normal(size=(count, LENGTH)) * rng.uniform(0.8, 1.2, size=(count, 1)) + 0.5
    updates[rng.choice(count, size=bad, replace=False)] *= -30.0
    settings = {"kind": kind, "clip": clip, "faulty": faulty, "iterations": iterations}
    norms = np.linalg.norm(updates, axis=1)
    clips = np.ones(count)
    if kind != "centred-clipping" and clip != "none":
        limit = lower_median(norms) if clip == "median" else clip
        clips = np.minimum(1.0, limit / norms)
    result = robust(settings, clips[:, None] * updates)
    return {
        "settings": settings,
        "norms": norms.tolist(),
        "updates": updates.tolist(),
        "clips": clips.tolist(),
        "result": result.tolist(),
    }


def rule_case(rng, kind, weights, clip, relative):
    count = int(rng.integers(4, 9))
    updates = rng.normal(size=(count, LENGTH)) * rng.uniform(0.1, 12.0, size=(count, 1))
    reports = [
        {
            "samples": int(rng.integers(1, 300)),
            "loss": float(rng.uniform(0.1, 3.5)),
            "steps": int(rng.integers(5, 60)),
            "learning_rate": float(rng.choice([0.1, 0.25, 1.0])),
            "norm": float(np.linalg.norm(update)),
        }
        for update in updates
    ]
    reports[1]["samples"] = 0
    settings = {
        "kind": kind,
        "weights": weights,
        "clip": clip,
        "loss_limit": 1.2 if relative else 2.0,
        "norm_limit": 1.5 if relative else 5.0,
        "penalty": 0.3,
        "relative": relative,
    }
    base, clips = weights_of(settings, reports)
    mean = (base[:, None] * clips[:, None] * updates).sum(axis=0) / base.sum()
    return {
        "settings": settings,
        "reports": reports,
        "updates": updates.tolist(),
        "weights": base.tolist(),
        "clips": clips.tolist(),
        "mean": mean.tolist(),
    }


def outer_case(rng, optimizer, rate, momentum):
    means = rng.normal(size=(6, LENGTH))
    velocity, steps = np.zeros(LENGTH), []
    for mean in means:
        if optimizer == "sgd":
            step = rate * mean
        else:
            velocity = momentum * velocity + mean
            step = rate * (velocity if optimizer == "momentum" else mean + momentum * velocity)
        steps.append(step.tolist())
    return {
        "optimizer": optimizer,
        "learning_rate": rate,
        "momentum": momentum,
        "means": means.tolist(),
        "steps": steps,
    }


def adaptive_case(rng, optimizer, rate, beta1, beta2, epsilon):
    means = rng.normal(size=(6, LENGTH)) * 0.1
    m, v, steps = np.zeros(LENGTH), np.full(LENGTH, epsilon**2), []
    for mean in means:
        m = beta1 * m + (1.0 - beta1) * mean
        square = mean**2
        if optimizer == "adam":
            v = beta2 * v + (1.0 - beta2) * square
        elif optimizer == "yogi":
            v = v - (1.0 - beta2) * square * np.sign(v - square)
        else:
            v = v + square
        steps.append((rate * m / (np.sqrt(v) + epsilon)).tolist())
    return {
        "optimizer": optimizer,
        "learning_rate": rate,
        "beta1": beta1,
        "beta2": beta2,
        "epsilon": epsilon,
        "means": means.tolist(),
        "steps": steps,
    }


def asynchronous_case(rng, nodes, buffer, exponent):
    """A history of rounds, some of them aborted. Each node trains for a round, for a while, and offers the update until it has counted."""
    commits, rounds = [], []
    begun = {node: (1, int(rng.integers(1, 6))) for node in range(nodes)}
    for number in range(1, 15):
        ready = [node for node, (made, span) in begun.items() if made + span <= number + 1]
        taken = sorted(int(node) for node in rng.permutation(ready)[:buffer])
        if len(taken) < buffer:
            rounds.append({"round": number, "updates": []})
            continue
        ages = [sum(1 for commit in commits if commit >= begun[node][0]) for node in taken]
        samples = rng.integers(1, 300, size=buffer)
        updates = rng.normal(size=(buffer, LENGTH))
        weights = samples / (1.0 + np.array(ages)) ** exponent
        rounds.append(
            {
                "round": number,
                "updates": [
                    {"node": node, "trained_for": begun[node][0], "samples": int(rows), "update": update.tolist()}
                    for node, rows, update in zip(taken, samples, updates)
                ],
                "staleness": ages,
                "weights": weights.tolist(),
                "mean": ((weights[:, None] * updates).sum(axis=0) / weights.sum()).tolist(),
            }
        )
        commits.append(number)
        for node in taken:
            begun[node] = (number + 1, int(rng.integers(1, 6)))
    return {"exponent": exponent, "rounds": rounds}


def inner_case(rng, optimizer, rate, beta1, beta2, epsilon, decay):
    gradients = rng.normal(size=(6, LENGTH)) * rng.uniform(0.001, 10.0, size=LENGTH)
    parameters = rng.normal(size=LENGTH)
    begun, m, v, after = parameters.tolist(), np.zeros(LENGTH), np.zeros(LENGTH), []
    for t, g in enumerate(gradients, start=1):
        if optimizer == "sgd":
            parameters = parameters - rate * g
        else:
            m = beta1 * m + (1.0 - beta1) * g
            v = beta2 * v + (1.0 - beta2) * g**2
            unbiased = (m / (1.0 - beta1**t)) / (np.sqrt(v / (1.0 - beta2**t)) + epsilon)
            parameters = parameters - rate * decay * parameters - rate * unbiased
        after.append(parameters.tolist())
    return {
        "optimizer": optimizer,
        "learning_rate": rate,
        "beta1": beta1,
        "beta2": beta2,
        "epsilon": epsilon,
        "weight_decay": decay,
        "begun": begun,
        "gradients": gradients.tolist(),
        "after": after,
    }


def rounded(value):
    """Nine digits: enough for a relative tolerance of 1e-5, short enough to read."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, list):
        return [rounded(v) for v in value]
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    return value


def main():
    rng = np.random.default_rng(20240611)
    rules = [
        rule_case(rng, "fedavg", "samples", "none", False),
        rule_case(rng, "fedavg", "equal", "none", False),
        rule_case(rng, "fedavg", "samples", "median", False),
        rule_case(rng, "fedavg", "samples", 4.5, False),
        rule_case(rng, "dynamic-weighted", "samples", "median", False),
        rule_case(rng, "dynamic-weighted", "equal", "none", False),
        rule_case(rng, "dynamic-weighted", "samples", "median", True),
        rule_case(rng, "dynamic-weighted", "equal", 2.0, True),
    ]
    outers = [
        outer_case(rng, "sgd", 1.0, 0.0),
        outer_case(rng, "sgd", 0.7, 0.9),
        outer_case(rng, "momentum", 0.7, 0.9),
        outer_case(rng, "nesterov", 0.7, 0.9),
        outer_case(rng, "nesterov", 1.0, 0.5),
    ]
    eaches = [
        each_case(rng, "median", 5, "none"),
        each_case(rng, "median", 6, "median"),
        each_case(rng, "trimmed-mean", 7, "none", faulty=2, bad=2),
        each_case(rng, "trimmed-mean", 4, 3.0),
        each_case(rng, "krum", 5, "none"),
        each_case(rng, "krum", 8, "median", faulty=2, bad=2),
        each_case(rng, "multi-krum", 9, "none", faulty=3, bad=3),
        each_case(rng, "multi-krum", 6, "median"),
        each_case(rng, "centred-clipping", 6, "median"),
        each_case(rng, "centred-clipping", 7, 2.5, iterations=10),
        each_case(rng, "centred-clipping", 1, 0.5, iterations=2, bad=0),
    ]
    adaptives = [
        adaptive_case(rng, "adam", 0.1, 0.9, 0.99, 1e-3),
        adaptive_case(rng, "adam", 0.03, 0.5, 0.9, 1e-2),
        adaptive_case(rng, "yogi", 0.1, 0.9, 0.99, 1e-3),
        adaptive_case(rng, "yogi", 0.05, 0.0, 0.5, 0.3),
        adaptive_case(rng, "adagrad", 0.1, 0.9, 0.99, 1e-3),
        adaptive_case(rng, "adagrad", 0.1, 0.0, 0.99, 1e-2),
    ]
    asynchronous = [
        asynchronous_case(rng, 6, 3, 0.5),
        asynchronous_case(rng, 5, 2, 1.0),
        asynchronous_case(rng, 4, 2, 0.25),
    ]
    inners = [
        inner_case(rng, "sgd", 0.1, 0.9, 0.999, 1e-8, 0.0),
        inner_case(rng, "adamw", 0.001, 0.9, 0.999, 1e-8, 0.01),
        inner_case(rng, "adamw", 0.05, 0.8, 0.95, 1e-3, 0.1),
        inner_case(rng, "adamw", 0.1, 0.0, 0.5, 0.3, 0.0),
    ]
    print('{"rules": [')
    print(",\n".join(json.dumps(rounded(case)) for case in rules))
    print('], "outers": [')
    print(",\n".join(json.dumps(rounded(case)) for case in outers))
    print('], "eaches": [')
    print(",\n".join(json.dumps(rounded(case)) for case in eaches))
    print('], "adaptives": [')
    print(",\n".join(json.dumps(rounded(case)) for case in adaptives))
    print('], "asynchronous": [')
    print(",\n".join(json.dumps(rounded(case)) for case in asynchronous))
    print('], "inners": [')
    print(",\n".join(json.dumps(rounded(case)) for case in inners))
    print("]}")


if __name__ == "__main__":
    main()
