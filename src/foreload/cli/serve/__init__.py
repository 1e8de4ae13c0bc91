"""``foreload serve``: a live page of the loaders published on this machine.

- ``app.py``: the server and its routes
- ``guard.py``: access control
- ``watch.py``: discovery of published loaders, and events for all viewers
- ``snapshot.py``: checks of what processes answer
- ``seen.py``: one loader: its latest figures, its history, and the verdict
- ``curves.py``: rates between the moments of a history, and the end of an epoch
- ``argument.py``: the part of an advice that can be pasted
- ``trial.py``: the benchmark that the page can start
- ``page/``: the page itself; plotly's script draws its plots
"""
