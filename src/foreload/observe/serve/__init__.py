"""``foreload serve``: a live page about the published loaders of this machine.

- ``app.py``: what answers at which path, and the server
- ``guard.py``: who is answered
- ``watch.py``: looks at what is published, and keeps what was seen
- ``trial.py``: the benchmark that the page can start
- ``page.html``, ``page.css``, ``page.js``, ``draw.js``: the page, which needs nothing from anywhere else
"""
