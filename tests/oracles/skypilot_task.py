"""Run by SkyPilot's own Python: reads tasks with SkyPilot's parser, prints what it made of them."""

import json
import sys

import sky
import yaml


def read(text: str) -> dict[str, object]:
    config = yaml.safe_load(text)
    given = [(name, "given") for name, value in config["envs"].items() if value is None]
    try:
        task = sky.Task.from_yaml_config(config, given)
    except (ValueError, sky.exceptions.InvalidSkyPilotConfigError) as error:
        return {"error": str(error)}
    (resources,) = task.resources
    return {
        "name": task.name,
        "num_nodes": task.num_nodes,
        "accelerators": resources.accelerators,
        "envs": task.envs,
        "run": task.run,
    }


json.dump([read(text) for text in json.load(sys.stdin)], sys.stdout)
