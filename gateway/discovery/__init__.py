"""Lets programs on the local network find the gateway without its address: an mDNS advert. `advert` decides what is
advertised, `advertiser` speaks mDNS.
"""
