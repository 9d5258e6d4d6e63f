"""Lists of edges in files: which nodes they name."""

from __future__ import annotations

from lingendice.io.edge_lists import read_edge_file


def test_nodes_with_zeros_in_front_are_their_own(tmp_path):
    (tmp_path / "graph.csv").write_text("source,target\n007,7\n7,10\n10,007\n")
    assert read_edge_file(tmp_path / "graph.csv").state_labels == ("007", "10", "7")
    (tmp_path / "graph.csv").write_text("source,target\n0,7\n7,10\n10,0\n")
    assert read_edge_file(tmp_path / "graph.csv").state_labels == (0, 7, 10)
