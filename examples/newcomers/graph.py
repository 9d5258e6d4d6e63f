"""A graph: PageRank with NetworkX's arguments, and the plain random walk.

python examples/newcomers/graph.py
"""

import networkx as nx

import lingendice as lg

graph = nx.DiGraph([("home", "shop"), ("shop", "cart"), ("cart", "shop"), ("shop", "home"), ("cart", "paid")])

ranks = lg.pagerank(graph, alpha=0.85)
print({page: round(rank, 3) for page, rank in ranks.items()})

from_cart = lg.pagerank(graph, personalization={"cart": 1.0})
print({page: round(rank, 3) for page, rank in from_cart.items()})

# Edges need no graph library, and an undirected graph at gamma = 1 is visited by degree.
from_edges = lg.pagerank(list(graph.edges))
assert all(abs(from_edges[page] - rank) < 1e-12 for page, rank in ranks.items())
walk = lg.solve(nx.path_graph(4))
print(walk.stationary)
