"""``foreload serve``: a live page of the loaders published on this machine.

- ``app.py``: the server and its routes
- ``guard.py``: access control
- ``watch.py``: discovery of published loaders, and events for all viewers
- ``seen.py``: the history of one loader: rates, and the verdict
- ``trial.py``: the benchmark that the page can start
- ``page/``: the page itself; plotly's script draws its plots
"""
