"""The one table of evaluation tasks: the module of each in this folder, and the class in it.

It imports nothing, because the config checks names by it. A task is imported when it is used; all
else about it, from its data to how a report shows it, is in its module (see `evaluation/task.py`).
"""

TASKS = {
    "sts": ("sts.task", "Sts"),
    "nq_open": ("questions.task", "NaturalQuestions"),
    "glue": ("glue.task", "GlueZeroShot"),
    "perplexity": ("perplexity.task", "Perplexity"),
    "neighbour_gain": ("neighbour_gain", "NeighbourGain"),
}
