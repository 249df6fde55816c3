"""What Tombolo writes for other programs, read by them. usage: tools.py METRICS LOGDIR
One line of JSON: of the metrics the families and samples, of the event file all scalars by tag as [step, value]."""
import json, sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

metrics, folder = sys.argv[1:]
families = list(text_string_to_metric_families(open(metrics, encoding="utf-8").read()))
events = EventAccumulator(folder, size_guidance={"scalars": 0})
events.Reload()
scalars = {tag: [[event.step, event.value] for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
print(json.dumps({
    "families": len(families),
    "samples": sum(len(family.samples) for family in families),
    "scalars": scalars,
}))
