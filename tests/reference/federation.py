"""An independent calculation of a Tombolo run that has no random numbers in it.

Reads the same topology file as `tombolo run`, and gives the same `accuracy`, `loss` and `weight_norm` for each round, from nothing but NumPy
and the definitions: float64, one plain mean over the updates, no domains, no messages. Only what needs no chance is supported (softmax
regression, zero start, sequential batches, rows from a file, whole epochs, equal or sample weights without clipping); anything else stops it.

    python federation.py ten-nodes-sgd.toml --digits digits.csv
"""

import argparse
import json
import pathlib
import tomllib

import numpy as np


def demand(value, expected, key):
    if value not in expected:
        raise SystemExit(f"{key} is {value!r}, this calculation knows only {expected}")
    return value


def gradients(bias, weight, images, labels):
    scores = images @ weight + bias
    scores -= scores.max(axis=1, keepdims=True)
    probabilities = np.exp(scores)
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    delta = probabilities
    delta[np.arange(len(labels)), labels] -= 1.0
    delta /= len(labels)
    return delta.sum(axis=0), images.T @ delta


def judge(bias, weight, images, labels):
    scores = images @ weight + bias
    largest = scores.max(axis=1)
    log_sum = np.log(np.exp(scores - largest[:, None]).sum(axis=1)) + largest
    loss = (log_sum - scores[np.arange(len(labels)), labels]).mean()
    return float((scores.argmax(axis=1) == labels).mean()), float(loss)


def train(bias, weight, images, labels, epochs, batch, learning_rate):
    bias, weight = bias.copy(), weight.copy()
    for _ in range(epochs):
        for start in range(0, len(labels), batch):
            of_bias, of_weight = gradients(
                bias, weight, images[start : start + batch], labels[start : start + batch]
            )
            bias -= learning_rate * of_bias
            weight -= learning_rate * of_weight
    return bias, weight


def run(topology, rows, images, labels):
    model, outer = topology["model"], topology.get("outer", {})
    aggregator = topology["aggregator"]
    demand(model["trainer"], ["digits-softmax"], "model.trainer")
    demand(model["init"], ["zeros"], "model.init")
    demand(model["order"], ["sequential"], "model.order")
    demand(model["partition"]["kind"], ["rows"], "model.partition.kind")
    demand(aggregator["kind"], ["fedavg"], "aggregator.kind")
    demand(aggregator["clip"], ["none"], "aggregator.clip")
    weights = demand(aggregator["weights"], ["equal", "samples"], "aggregator.weights")
    optimizer = demand(outer["optimizer"], ["sgd", "momentum", "nesterov"], "outer.optimizer")
    outer_rate, momentum = outer["learning_rate"], outer.get("momentum", 0.9)
    epochs, unit = str(topology["federation"]["sync_every"]).split()
    demand(unit, ["epoch", "epochs"], "federation.sync_every")

    nodes = [f"{domain['name']}/{node}" for domain in topology["domain"] for node in domain["nodes"]]
    absent = {entry["round"]: entry["nodes"] for entry in topology["round"].get("absent", [])}
    held_out = np.arange(len(labels)) % 5 == 4

    parameters = [np.zeros(10), np.zeros((64, 10))]
    velocity = [np.zeros(10), np.zeros((64, 10))]
    for number in range(1, topology["federation"]["rounds"] + 1):
        total, mean = 0.0, [np.zeros(10), np.zeros((64, 10))]
        for node in nodes:
            if node in absent.get(number, []):
                continue
            own = rows[node]
            assert not held_out[own].any(), f"{node} trains on test rows"
            local = train(
                *parameters,
                images[own],
                labels[own],
                int(epochs),
                model["batch"],
                model["learning_rate"],
            )
            weight = 1.0 if weights == "equal" else float(len(own))
            mean = [m + weight * (new - old) for m, new, old in zip(mean, local, parameters)]
            total += weight
        mean = [m / total for m in mean]
        if optimizer == "sgd":
            steps = mean
        else:
            velocity = [momentum * v + g for v, g in zip(velocity, mean)]
            steps = velocity
            if optimizer == "nesterov":
                steps = [g + momentum * v for g, v in zip(mean, velocity)]
        parameters = [p + outer_rate * step for p, step in zip(parameters, steps)]
        accuracy, loss = judge(*parameters, images[held_out], labels[held_out])
        norm = float(np.sqrt(sum((p**2).sum() for p in parameters)))
        yield {"round": number, "accuracy": accuracy, "loss": loss, "weight_norm": norm}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("topology", type=pathlib.Path)
    parser.add_argument("--digits", required=True, help="digits.csv or digits.csv.gz: 64 pixels and the label a row")
    arguments = parser.parse_args()
    topology = tomllib.loads(arguments.topology.read_text())
    rows = json.loads((arguments.topology.parent / topology["model"]["partition"]["file"]).read_text())
    table = np.loadtxt(arguments.digits, delimiter=",", dtype=np.float64)
    for record in run(topology, rows, table[:, :64] / 16.0, table[:, 64].astype(int)):
        print(json.dumps(record))


if __name__ == "__main__":
    main()
