"""The one table of evaluation tasks: each with its module in this folder and the class in it.

A table alone, for the config checks names by it; a module is imported when its task is asked for.
"""

TASKS = {
    "sts": ("sts.task", "Sts"),
    "nq_open": ("questions.task", "NaturalQuestions"),
    "glue": ("glue.task", "GlueZeroShot"),
    "perplexity": ("perplexity.task", "Perplexity"),
    "neighbour_gain": ("neighbour_gain", "NeighbourGain"),
}
