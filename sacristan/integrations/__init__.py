"""Loggers and callbacks in the form that other libraries prescribe; each logs into the run of `sacristan.init`.

    from sacristan.integrations.lightning import SacristanLogger
    from sacristan.integrations.transformers import SacristanCallback
    from sacristan.integrations.accelerate import SacristanTracker
    from sacristan.integrations.ignite import SacristanLogger
    from sacristan.integrations.skorch import SacristanLogger

Each takes a run: that of `sacristan.init`, or `_run` of an experiment. Without one, it logs into the run that `init`
has started, or else starts one, with the arguments of `init` that it was given.
"""
