"""A page on a clustering: `facts` computes what it shows, `pictures` draws, `page` writes one offline HTML file."""
