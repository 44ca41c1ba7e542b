"""The smallest plug-in: a class."""


class Tuner:
    name = "from-dist"
